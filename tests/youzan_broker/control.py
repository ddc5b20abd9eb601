"""An embedded Youzan cluster, and the methods with which a test controls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

from gnsq_lite.broker.lookupd import Lookupd
from gnsq_lite.errors import OptionError
from tests.youzan_broker.cluster import Cluster, ClusterRefused, Seat
from tests.youzan_broker.http import lookupd_app, nsqd_app
from tests.youzan_broker.nsqd import Directory, YouzanNsqd


def build(
    nodes: list[YouzanNsqd], lookupds: list[Lookupd], host: str, failover_time: float
) -> tuple[Cluster, Directory]:
    """Make one cluster of *nodes* and *lookupds*."""
    cluster = Cluster(len(nodes), nodes[0].options, nodes[0].clock, failover_time)
    directory = Directory(cluster, nodes, lookupds, host)
    for node in nodes:
        node.join(cluster)
        node.app = node.https_app = nsqd_app(node)
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

    def __init__(self, call: Callable[[Callable[[], Any]], Any], cluster: Cluster, directory: Directory) -> None:
        self._in_loop, self._cluster, self._directory = call, cluster, directory

    def _call(self, act: Callable[[], Any]) -> Any:
        try:
            return self._in_loop(act)
        except ClusterRefused as error:
            raise OptionError("topic", "", str(error)) from None

    def create_topic(self, name: str, partitions: int = 1, *, replicas: int = 1, **kinds: bool) -> None:
        """Make a topic, its leaders spread over the nodes; one that exists is left as it is.

        *kinds* are ``ext``, ``ordered`` and ``disable_channel_auto_create``.  Raises OptionError.
        """
        for kind in kinds:
            if kind not in ("ext", "ordered", "disable_channel_auto_create"):
                raise OptionError(kind, kinds[kind], "is not a kind of topic")
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

    def trim(self, topic: str, partition: int, place: int) -> None:
        """Remove a partition's messages before *place*, in bytes, as retention does.  Raises OptionError."""
        self._call(lambda: self._seat(topic, partition).partition.trim(place))

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
