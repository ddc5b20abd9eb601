"""One nsqd of a Youzan cluster, and how nsqlookupd lists the nodes.

Partitions have leaders on the nodes; nsqlookupd knows ``access``, ``metainfo`` and ``/listlookup``.  Topics are made
with :mod:`tests.youzan_broker.control` or over HTTP, never by PUB or SUB.
"""

from __future__ import annotations

import socket
from typing import Any

from gnsq_lite.broker.lookupd import Lookupd
from gnsq_lite.broker.nsqd import Nsqd
from gnsq_lite.broker.session import Session
from gnsq_lite.broker.tcp import Connection
from tests.youzan_broker.cluster import Cluster
from tests.youzan_broker.session import YOUZAN_VERSION, YouzanSession

#: What these servers have where nsqd 1.3.0 has another default; seconds.
DEFAULTS: dict[str, Any] = {
    "output_buffer_timeout": 0.05,
    "min_output_buffer_timeout": 0.001,
    "max_output_buffer_timeout": 1.0,
    "max_req_timeout": 259200.0,
}


class YouzanNsqd(Nsqd):
    """One node of the cluster.  All methods belong to the broker's thread."""

    cluster: Cluster

    def join(self, cluster: Cluster) -> None:
        """Make it a node of *cluster*; before it starts."""
        self.cluster = cluster

    def _new_session(self, connection: Connection) -> Session:
        place = (self.cluster, self.number)
        return YouzanSession(self, connection, self._next_client, self.clock.wall(), *place)

    def start(self) -> None:
        """Listen, and become the leader of partitions without one.  Raises OSError."""
        super().start()
        self._timers.append(self.every(self.options.queue_scan_interval, self.cluster.scan))
        self.cluster.node_up(self.number)

    def stop(self, *, abrupt: bool = False, stay_registered: bool = False) -> None:
        """Stop: its partitions go to another replica, later where it is killed, or have no leader."""
        if self.running:
            self.cluster.node_down(self.number, self.cluster.failover_time if abrupt else 0.0)
        super().stop(abrupt=abrupt, stay_registered=stay_registered)

    def ports(self) -> dict[str, int]:
        """Return its ports as ``/info`` shows them."""
        return {"tcp_port": self.tcp_port, "http_port": self.http_port}

    def _introduce(self) -> None:
        self._unregister()  # nsqlookupd knows the cluster itself


class Directory:
    """Introduces nodes and nsqlookupds to nsqlookupd's clients."""

    def __init__(self, cluster: Cluster, nodes: list[YouzanNsqd], lookupds: list[Lookupd], host: str) -> None:
        self._cluster, self._nodes, self._lookupds, self._host = cluster, nodes, lookupds, host

    def introduce(self, number: int | None) -> dict[str, Any]:
        """Return a node as nsqlookupd lists it."""
        node = self._nodes[number or 0]
        remote = f"{self._host}:{node.tcp_port}"
        return {
            "id": remote,
            "remote_address": remote,
            "hostname": socket.gethostname(),
            "broadcast_address": node.options.broadcast_address,
            "tcp_port": node.tcp_port,
            "http_port": node.http_port,
            "version": YOUZAN_VERSION,
            "distributed_id": self.distributed_id(node.number),
        }

    def distributed_id(self, number: int) -> str:
        """Return the id by which leaders are moved."""
        node = self._nodes[number]
        return f"{self._host}:{node.http_port}:{node.tcp_port}:{number + 1}"

    def number_of(self, distributed_id: str) -> int | None:
        """Return the node of that id; None: there is none."""
        return next((n.number for n in self._nodes if self.distributed_id(n.number) == distributed_id), None)

    def lookupds(self) -> list[dict[str, Any]]:
        """Return the nsqlookupds that run, as ``/listlookup`` lists them: the ports are strings."""
        return [
            {
                "ID": f"{self._host}:{lookupd.http_port}:{lookupd.http_port}:nsqlookup",
                "NodeIP": self._host,
                "TcpPort": "4160",  # no nsqd registers with it
                "HttpPort": str(lookupd.http_port),
                "RpcPort": "4160",
                "Epoch": 0,
            }
            for lookupd in self._lookupds
            if lookupd.running
        ]

    def upgrade(self, name: str) -> None:
        """Make a topic an ext topic under its consumers: they receive no more messages, as from the real server."""
        topic = self._cluster.topics.get(name)
        if topic is None or topic.ext:
            return
        topic.ext = True
        for seat in topic.seats:
            seat.partition.ext = True
            for channel in seat.partition.channels.values():
                for client in list(channel.clients.values()):
                    if isinstance(client, YouzanSession):
                        client.answer_nothing()
