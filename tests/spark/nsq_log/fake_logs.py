"""Partition logs in memory, in place of nsqd's."""

from __future__ import annotations

from gnsq_lite.spark.nsq_log.cluster import Extent, Mark
from gnsq_lite.spark.nsq_log.options import LogOptions
from gnsq_lite.spark.options import parse


def options(**more: str) -> LogOptions:
    return parse(LogOptions, {"topic": "t", "lookupdHTTPAddresses": "127.0.0.1:1", **more})


class FakeLogs:
    """Logs of messages of ten bytes each, published every second."""

    def __init__(self, **counts: int) -> None:
        self.counts = {int(name[1:]): count for name, count in counts.items()}
        self.begin = 0

    def extents(self) -> dict[int, Extent]:
        return {p: Extent(self.begin, 10 * count, count) for p, count in self.counts.items()}

    def _mark(self, partition: int, index: int) -> Mark | None:
        return Mark(10 * index, index + 1, index * 1_000_000_000) if index < self.counts[partition] else None

    def at(self, partition: int, place: int) -> Mark | None:
        return self._mark(partition, -(-max(place, self.begin) // 10))

    def numbered(self, partition: int, number: int) -> Mark | None:
        return self._mark(partition, number - 1)
