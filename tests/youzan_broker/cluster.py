"""What the nodes of a cluster share: topics, where the leader of each partition is, and whether it takes writes.

Replicas hold nothing of their own: a partition's log is one object, and its leader the node that serves it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.broker.channels import Shared
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.clock import Clock
from tests.youzan_broker.log import Partition, PartitionMessage

MAX_PARTITIONS = 255
TAG_KEY = "##client_dispatch_tag"


class ClusterRefused(Exception):
    """A topic cannot be created, or a leader cannot be moved.  ``str()`` has the reason."""


@dataclass
class Seat:
    """One partition and its place."""

    partition: Partition
    replicas: list[int]
    leader: int | None
    writable: bool = True
    lost: tuple[int, float] | None = None  # the leader that was killed, and when another may follow it


@dataclass
class ClusterTopic:
    """One topic."""

    name: str
    replica: int
    ext: bool
    ordered: bool
    disable_channel_auto_create: bool
    seats: list[Seat] = field(default_factory=list)

    def meta(self) -> dict[str, Any]:
        """Return nsqlookupd's ``meta``."""
        return {
            "partition_num": len(self.seats),
            "replica": self.replica,
            "extend_support": self.ext,
            "ordered": self.ordered,
            "multi_part": False,
            "disable_channel_auto_create": self.disable_channel_auto_create,
        }

    def channels(self) -> list[str]:
        """Return the names of all channels."""
        return sorted({name for seat in self.seats for name in seat.partition.channels})


class Cluster:
    """All topics of a cluster of nodes, numbered from 0.  Used in the broker's thread."""

    def __init__(self, nodes: int, options: BrokerOptions, clock: Clock, failover_time: float = 0.0) -> None:
        self.clock, self.failover_time = clock, failover_time
        self.topics: dict[str, ClusterTopic] = {}
        self.up: set[int] = set()
        self.shared = Shared(options)
        self._nodes = nodes

    # -- topics -----------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, replica: int, **kinds: bool) -> ClusterTopic:
        """Make a topic; one that exists is left as it is.  Raises ClusterRefused."""
        known = self.topics.get(name)
        if known is not None:
            return known
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ClusterRefused("INVALID_ARG_TOPIC_PARTITION_NUM")
        if not 1 <= replica <= self._nodes:
            raise ClusterRefused("ErrType:9 ErrCode:1 : No node is available for topic")
        topic = ClusterTopic(
            name,
            replica,
            ext=kinds.get("ext", False),
            ordered=kinds.get("ordered", False),
            disable_channel_auto_create=kinds.get("disable_channel_auto_create", False),
        )
        for number in range(partitions):
            places = [(number + at) % self._nodes for at in range(replica)]
            partition = Partition(name, number, self.shared, ordered=topic.ordered, ext=topic.ext)
            seat = Seat(partition, places, None)
            topic.seats.append(seat)
            self._elect(seat)
        self.topics[name] = topic
        return topic

    def delete(self, name: str) -> None:
        """Delete a topic, its channels' clients are disconnected.  Raises ClusterRefused."""
        topic = self.topics.pop(name, None)
        if topic is None:
            raise ClusterRefused("Key not found")
        for seat in topic.seats:
            for channel in list(seat.partition.channels):
                seat.partition.delete_channel(channel)

    def seat(self, name: str, number: int) -> Seat | None:
        """Return a partition's seat; None where there is none."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= number < len(topic.seats):
            return None
        return topic.seats[number]

    def led_by(self, name: str, node: int) -> list[int]:
        """Return the partitions of a topic that *node* leads."""
        topic = self.topics.get(name)
        return [] if topic is None else [n for n, seat in enumerate(topic.seats) if seat.leader == node]

    # -- leaders ----------------------------------------------------------------------------------------------------

    def move(self, name: str, number: int, node: int) -> None:
        """Make *node* the leader: consumers of the old one see the end of their connections.  Raises ClusterRefused."""
        seat = self.seat(name, number)
        if seat is None:
            raise ClusterRefused("Key not found")
        if node not in self.up:
            raise ClusterRefused(f"node {node} is not up")
        if node not in seat.replicas:
            seat.replicas.append(node)
        seat.lost = None
        self._set_leader(seat, node)

    def _set_leader(self, seat: Seat, node: int | None) -> None:
        if seat.leader != node:
            seat.leader = node
            for channel in list(seat.partition.channels.values()):
                channel.change_leader()

    def _elect(self, seat: Seat) -> None:
        seat.lost = None
        self._set_leader(seat, next((node for node in seat.replicas if node in self.up), None))

    def _seats(self) -> Iterator[Seat]:
        for topic in self.topics.values():
            yield from topic.seats

    def node_up(self, node: int) -> None:
        """Make a started node the leader of partitions without one, unless another node's failover time still runs."""
        self.up.add(node)
        for seat in self._seats():
            if seat.leader is None and (seat.lost is None or seat.lost[0] == node):
                self._elect(seat)

    def node_down(self, node: int, failover_time: float = 0.0) -> None:
        """A node is gone: in *failover_time* seconds its partitions go to another replica, or have no leader."""
        self.up.discard(node)
        for seat in self._seats():
            if seat.leader == node:
                if failover_time:
                    self._set_leader(seat, None)
                    seat.lost = (node, self.clock.now() + failover_time)
                else:
                    self._elect(seat)

    # -- messages ---------------------------------------------------------------------------------------------------

    def message(self, body: bytes, header: bytes | None = None) -> PartitionMessage:
        """Return a new message for :meth:`Partition.put`."""
        return PartitionMessage(b"", body, int(self.clock.wall() * 1e9), header, tag_of(header))

    def scan(self) -> None:
        """Requeue what has timed out, release what was deferred, and give partitions new leaders in their time."""
        now = self.clock.now()
        for seat in self._seats():
            seat.partition.scan(now)
            if seat.lost is not None and seat.lost[1] <= now:
                self._elect(seat)

    def schedule_with(self, soon: Callable[[], None]) -> None:
        """Call *soon* when a channel may have something to hand out; it sees to :meth:`pump`."""
        self.shared.on_dirty = soon

    def pump(self) -> None:
        """Hand out what can be handed out."""
        self.shared.pump(self.clock.now())


def tag_of(header: bytes | None) -> str:
    """Return the tag of a JSON header; "" without one."""
    if header is None or TAG_KEY.encode() not in header:
        return ""
    tag = json.loads(header).get(TAG_KEY)
    return tag if isinstance(tag, str) else ""
