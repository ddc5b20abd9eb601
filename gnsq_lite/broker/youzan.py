"""A cluster of Youzan's kind in the broker: ``Broker(youzan=True, nsqds=2)``.

Partitions have leaders on the nodes; nsqlookupd knows ``access``, ``metainfo`` and ``/listlookup``.  Topics are made by
:meth:`YouzanControl.create_topic` or over HTTP, never by PUB or SUB.  There is no replication behind it: a replica is a
node that may become the leader, and the log moves with the leadership.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_lite.broker.lookupd import Lookupd
from gnsq_lite.broker.nsqd import Nsqd
from gnsq_lite.broker.session import Session
from gnsq_lite.broker.youzan_cluster import Cluster, ClusterRefused, Seat
from gnsq_lite.broker.youzan_http import lookupd_app, nsqd_app
from gnsq_lite.broker.youzan_session import YOUZAN_VERSION, YouzanSession
from gnsq_lite.errors import OptionError

if TYPE_CHECKING:
    from gnsq_lite.broker.embedded import Broker

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
        self.app = nsqd_app(self)
        names = {"cluster": cluster, "node": self.number}
        self.session_class: type[Session] = type("NodeSession", (YouzanSession,), names)

    def start(self) -> None:
        """Listen, and lead what nobody leads.  Raises OSError."""
        super().start()
        self._timers.append(self.every(self.options.queue_scan_interval, self.cluster.scan))
        self.cluster.node_up(self.number)

    def stop(self, *, abrupt: bool = False, stay_registered: bool = False) -> None:
        """Stop: its partitions go to another replica, or have no leader."""
        if self.running:
            self.cluster.node_down(self.number)
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
                "ID": f"{self._host}:{lookupd.tcp_port}:{lookupd.tcp_port}:nsqlookup",
                "NodeIP": self._host,
                "TcpPort": str(lookupd.tcp_port),
                "HttpPort": str(lookupd.http_port),
                "RpcPort": str(lookupd.tcp_port),
                "Epoch": 0,
            }
            for lookupd in self._lookupds
            if lookupd.running
        ]

    def upgrade(self, name: str) -> None:
        """Make a topic an ext topic under its consumers: they hear nothing any more, as from the real server."""
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


def build(nodes: list[YouzanNsqd], lookupds: list[Lookupd], host: str) -> tuple[Cluster, Directory]:
    """Make one cluster of *nodes* and *lookupds*."""
    cluster = Cluster(len(nodes), nodes[0].options, nodes[0].clock)
    directory = Directory(cluster, nodes, lookupds, host)
    for node in nodes:
        node.join(cluster)
    for lookupd in lookupds:
        lookupd.app = lookupd_app(cluster, directory)

    def soon() -> None:
        gevent.get_hub().loop.run_callback(cluster.pump)

    cluster.schedule_with(soon)
    return cluster, directory


class YouzanControl:
    """What a test does to the cluster.  The methods may be called from any thread or greenlet.

    Nodes are given by their number in ``Broker.nodes``.
    """

    def __init__(self, broker: Broker, cluster: Cluster, directory: Directory) -> None:
        self._broker, self._cluster, self._directory = broker, cluster, directory

    def _call(self, act: Callable[[], Any]) -> Any:
        try:
            return self._broker.call(act)
        except ClusterRefused as error:
            raise OptionError("topic", "", str(error)) from None

    def create_topic(self, name: str, partitions: int = 1, *, replicas: int = 1, **kinds: bool) -> None:
        """Make a topic, its leaders spread over the nodes; one that exists is left as it is.

        *kinds* are ``ext``, ``ordered`` and ``disable_channel_auto_create``.  Raises OptionError.
        """
        for kind in kinds:
            if kind not in ("ext", "ordered", "disable_channel_auto_create"):
                raise OptionError(kind, kinds[kind], "is no kind of topic")
        self._call(lambda: self._cluster.create(name, partitions, replicas, **kinds))

    def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel on every partition, at its end.  Raises OptionError for an unknown topic."""

        def create() -> None:
            for number in range(self._partitions(topic)):
                self._seat(topic, number).partition.channel(channel)

        self._call(create)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its consumers' connections end.  Raises OptionError."""
        self._call(lambda: self._cluster.delete(name))

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the number of the node that leads; None where none does.  Raises OptionError."""
        leader: int | None = self._call(lambda: self._seat(topic, partition).leader)
        return leader

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make *node* the leader: the old one's consumers see the end of their connections.  Raises OptionError."""
        self._call(lambda: self._cluster.move(topic, partition, node))

    def set_writable(self, topic: str, partition: int, writable: bool) -> None:
        """Refuse publishes with E_FAILED_ON_NOT_WRITABLE, or take them again.  Raises OptionError."""

        def change() -> None:
            self._seat(topic, partition).writable = writable

        self._call(change)

    def upgrade_to_ext(self, topic: str) -> None:
        """Make an ext topic of a plain one: its present consumers fall silent, as with the real server."""
        self._call(lambda: self._directory.upgrade(topic))

    def bodies(self, topic: str, partition: int) -> list[bytes]:
        """Return all that was published to a partition, in order.  Raises OptionError."""
        bodies: list[bytes] = self._call(lambda: [m.body for m in self._seat(topic, partition).partition.log])
        return bodies

    def depth(self, topic: str, partition: int, channel: str) -> int:
        """Return how many messages a channel has not finished on a partition.  Raises OptionError."""

        def count() -> int:
            found = self._seat(topic, partition).partition.channels.get(channel)
            return 0 if found is None else found.depth + len(found.in_flight) + len(found.deferred)

        depth: int = self._call(count)
        return depth

    def _partitions(self, topic: str) -> int:
        found = self._cluster.topics.get(topic)
        if found is None:
            raise ClusterRefused(f"there is no topic {topic}")
        return len(found.seats)

    def _seat(self, topic: str, partition: int) -> Seat:
        seat = self._cluster.seat(topic, partition)
        if seat is None:
            raise ClusterRefused(f"there is no partition {partition} of {topic}")
        return seat
