"""What a micro-batch of a log has: pure decisions about places in it.

An offset is, as in Spark's Kafka source, ``{"topic": {"0": 23, "1": 45}}``: per partition the place, in bytes, where
the next batch begins.  A message belongs to the range in which it begins, so a range never changes its rows (PIPE-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.spark.logcluster import Extent, Logs
from gnsq_lite.spark.logoptions import EARLIEST, Position

#: Places by partition.
Places = dict[int, int]


def as_offset(topic: str, places: Places) -> dict[str, Any]:
    """Return what Spark stores; it compares the text, so the order of keys is fixed."""
    return {topic: {str(partition): places[partition] for partition in sorted(places)}}


def parse_places(raw: Mapping[str, Any], topic: str) -> Places:
    """Return the places of an offset Spark gives back.  Raises RecordingError for one that is not this query's."""
    found = raw.get(topic)
    if len(raw) != 1 or not isinstance(found, Mapping) or not all(isinstance(one, int) for one in found.values()):
        raise RecordingError(
            f"the checkpoint's offset {dict(raw)!r} is none of topic {topic}: use another checkpointLocation"
        )
    return {int(partition): place for partition, place in found.items()}


@dataclass(frozen=True)
class Range:
    """A task's share: the messages of a partition that begin at begin <= place < end."""

    partition: int
    begin: int
    end: int


def resolved(position: Position, extents: Mapping[int, Extent], logs: Logs) -> Places:
    """Return the places that *position* means in the logs of *extents*."""
    return {partition: _place(position, partition, extent, logs) for partition, extent in extents.items()}


def _place(position: Position, partition: int, extent: Extent, logs: Logs) -> int:
    if position.time is not None:
        return at_time(partition, extent, position.time * 1_000_000, logs)
    place = position.offsets.get(partition, position.otherwise)
    if place < 0:
        return _first_place(partition, extent, logs) if place == EARLIEST else extent.end
    if extent.begin <= place < extent.end:
        found = logs.at(partition, place)  # a place amid a message means the next one
        return extent.end if found is None else found.place
    return place  # behind the log's end, or removed: told of when it is read


def _first_place(partition: int, extent: Extent, logs: Logs) -> int:
    """Return where reading can begin: nsqd may find a message no more whose bytes it has not removed yet."""
    found = logs.at(partition, extent.begin) if extent.begin < extent.end else None
    return extent.end if found is None else found.place


def at_time(partition: int, extent: Extent, since_ns: int, logs: Logs) -> int:
    """Return the place of the first message published at *since_ns* or later; the log's end where there is none."""
    first = logs.at(partition, extent.begin) if extent.begin < extent.end else None
    if first is None:
        return extent.end
    low, high, place = first.number, extent.messages + 1, extent.end
    while low < high:
        middle = (low + high) // 2
        mark = logs.numbered(partition, middle)
        if mark is None or mark.timestamp_ns >= since_ns:
            high, place = middle, place if mark is None else mark.place
        else:
            low = middle + 1
    return place


def limited(begins: Places, ends: Places, rows: int, logs: Logs) -> Places:
    """Return *ends*, moved so that a batch has at most about *rows* messages.

    As in Kafka's source, each partition's share is as its part of what waits; one message at least.
    """
    waiting = {
        partition: ends[partition] - begins[partition] for partition in ends if ends[partition] > begins[partition]
    }
    total = sum(waiting.values())
    cut = dict(ends)
    for partition, bytes_here in waiting.items():
        share = max(1, rows * bytes_here // total)
        first = logs.at(partition, begins[partition])
        mark = None if first is None else logs.numbered(partition, first.number + share)
        if mark is not None:
            cut[partition] = max(begins[partition], min(ends[partition], mark.place))
    return cut


def messages_waiting(begins: Places, extents: Mapping[int, Extent], logs: Logs) -> int:
    """Return how many messages lie between *begins* and the logs' ends."""
    waiting = 0
    for partition, extent in extents.items():
        begin = max(begins.get(partition, 0), extent.begin)
        first = logs.at(partition, begin) if begin < extent.end else None
        if first is not None:
            waiting += extent.messages - first.number + 1
    return waiting


def ranges(begins: Places, ends: Places) -> list[Range]:
    """Return the tasks between two offsets, one a partition; none where nothing is between."""
    found = [Range(partition, begins.get(partition, 0), end) for partition, end in sorted(ends.items())]
    return [one for one in found if one.begin < one.end]
