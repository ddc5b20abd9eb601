"""Queries the logs of a topic in a cluster of Youzan's NSQ: the leader, the beginning and the end of each log.

A log is a topic partition.  An offset is a number of bytes in the log since the topic was created.  The offset of a
message does not change when retention removes the log's beginning, or when another replica becomes the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gnsq_lite.errors import HTTPError, HTTPStatusError, NSQError
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.http.fields import mapping, read
from gnsq_lite.http.nodes import LookupResult, Node
from gnsq_lite.http.stats import TopicStats
from gnsq_lite.options import Address

_T = TypeVar("_T")


class LogUnavailable(NSQError):
    """A topic's logs are unavailable: no nsqlookupd or leader answers, or the topic is not in a cluster."""


@dataclass(frozen=True)
class Extent:
    """The offsets of a log's stored messages, begin <= offset < end, and the number of messages published so far."""

    begin: int
    end: int
    messages: int


@dataclass(frozen=True)
class Mark:
    """A message's offset, number in the log (from 1), and publish time in nanoseconds."""

    place: int
    number: int
    timestamp_ns: int


@dataclass(frozen=True)
class Leader:
    """The leader of a partition, and the topic's settings."""

    node: Node
    ext: bool
    ordered: bool
    #: Whether consumers may subscribe only to registered channels.
    registered_only: bool


class LogCluster:
    """Queries nsqlookupds and the leaders of partitions.  Methods raise LogUnavailable if no server answers."""

    def __init__(self, lookupds: Sequence[str], topic: str, partitions: Iterable[int] = ()) -> None:
        self._lookupds, self._topic, self._wanted = list(lookupds), topic, frozenset(partitions)
        self._found: LookupResult | None = None
        #: Error of a leader that did not answer the last :meth:`extents`, or "".
        self.trouble = ""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_found": None}

    def _lookup(self) -> LookupResult:
        errors = []
        for address in self._lookupds:
            try:
                found = LookupdClient(address).lookup(self._topic, access="r", metainfo=True)
            except HTTPError as error:
                errors.append(str(error))
                continue
            if found.meta is not None and found.meta.partition_num:
                return found
            errors.append(f"{address} lists no topic {self._topic} of a cluster")
        raise LogUnavailable("; ".join(errors))

    def _known(self) -> LookupResult:
        if self._found is None:
            self._found = self._lookup()
        return self._found

    def _with_leader(self, call: Callable[[], _T]) -> _T:
        """Run *call*.  If a request fails, the leader may have moved: look up the leaders, and run *call* again."""
        try:
            return call()
        except HTTPError:
            self._found = None
        try:
            return call()
        except HTTPError as error:
            self._found = None
            raise LogUnavailable(str(error)) from error

    def leader(self, partition: int) -> Leader | None:
        """Return the partition's leader, or None."""
        self._found = None
        found = self._known()
        node, meta = found.partitions.get(partition), found.meta
        if node is None or meta is None:
            return None
        return Leader(node, meta.extend_support, meta.ordered, meta.disable_channel_auto_create)

    def count(self) -> int:
        """Return how many partitions the topic has."""
        meta = self._known().meta
        return 0 if meta is None else meta.partition_num

    def wanted(self) -> list[int]:
        """Return the partitions to read."""
        return [number for number in range(self.count()) if not self._wanted or number in self._wanted]

    def extents(self) -> dict[int, Extent]:
        """Return the extent of each partition whose leader answers."""
        self._found = None
        found = self._known()
        led: dict[Address, set[int]] = {}
        for number in self.wanted():
            if number in found.partitions:
                led.setdefault(found.partitions[number].http_address, set()).add(number)
        extents: dict[int, Extent] = {}
        self.trouble = ""
        for address, numbers in led.items():
            try:
                stats = NsqdClient(address).stats(topic=self._topic, include_clients=False, leader_only=True)
            except HTTPError as error:
                self.trouble = f" ({error})"
                continue
            for topic in stats.topics:
                if topic.topic_name == self._topic and topic.topic_partition in numbers:
                    extents[topic.topic_partition] = _extent(topic)
        return dict(sorted(extents.items()))

    def at(self, partition: int, place: int) -> Mark | None:
        """Return the first message at the offset *place* or later, or None if there is no such message."""
        return self._with_leader(partial(self._search, partition, place, "virtual_offset"))

    def numbered(self, partition: int, number: int) -> Mark | None:
        """Return the message with this number, or None if there is no such message."""
        return self._with_leader(partial(self._search, partition, number, "count"))

    def _search(self, partition: int, position: int, search: str) -> Mark | None:
        node = self._known().partitions.get(partition)
        if node is None:
            self._found = None
            raise LogUnavailable(f"partition {partition} of {self._topic} has no leader")
        params = {"topic": self._topic, "partition": partition, "search_mode": search, "search_pos": position}
        try:
            reply = NsqdClient(node.http_address).get("/message/get", params)
            found = mapping(reply.url, {"message": reply.json()}, "message")
        except HTTPStatusError as error:
            if error.status in (400, 404, 500):  # nsqd answers 500 at the end of its log
                return None
            raise
        keys = ("offset", "queue_cnt_index", "timestamp")
        return Mark(*(read(reply.url, key, found.get(key) or 0, "int") for key in keys))


def _extent(topic: TopicStats) -> Extent:
    begin, end = topic.raw.get("backend_start"), topic.raw.get("backend_depth")
    if not isinstance(begin, int) or not isinstance(end, int):
        raise LogUnavailable(f"nsqd does not report where the log of {topic.topic_name} begins: it is not Youzan's")
    return Extent(begin, end, topic.message_count)
