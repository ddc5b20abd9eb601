"""Plans the ranges of a micro-batch of logs.

As in Spark's Kafka source, an offset is ``{"topic": {"0": 23, "1": 45}}``: for each partition, the byte offset at which
the next batch begins.  A message belongs to the range that has the message's first byte.  So a batch that runs
again has the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.spark.nsq_log.cluster import Extent, LogCluster
from gnsq_lite.spark.nsq_log.options import EARLIEST, LogPosition

#: Byte offsets by partition.
Places = dict[int, int]


def as_offset(topic: str, places: Places) -> dict[str, Any]:
    """Return the offset for Spark, with sorted keys, because Spark compares offsets as text."""
    return {topic: {str(partition): places[partition] for partition in sorted(places)}}


def parse_places(raw: Mapping[str, Any], topic: str) -> Places:
    """Parse an offset from Spark.  Raises RecordingError if the offset is not an offset of *topic*."""
    found = raw.get(topic)
    if len(raw) != 1 or not isinstance(found, Mapping) or not all(isinstance(one, int) for one in found.values()):
        raise RecordingError(
            f"the checkpoint's offset {dict(raw)!r} is not of topic {topic}: use another checkpointLocation"
        )
    return {int(partition): place for partition, place in found.items()}


@dataclass(frozen=True)
class Range:
    """The messages of a task: the messages of one partition with begin <= offset < end."""

    partition: int
    begin: int
    end: int


def resolved(position: LogPosition, extents: Mapping[int, Extent], logs: LogCluster) -> Places:
    """Resolve *position* to byte offsets in the logs of *extents*."""
    return {partition: _place(position, partition, extent, logs) for partition, extent in extents.items()}


def _place(position: LogPosition, partition: int, extent: Extent, logs: LogCluster) -> int:
    if position.time is not None:
        return at_time(partition, extent, position.time * 1_000_000, logs)
    place = position.offsets.get(partition, position.otherwise)
    if place < 0:
        return _first_place(partition, extent, logs) if place == EARLIEST else extent.end
    if extent.begin <= place < extent.end:
        found = logs.at(partition, place)  # an offset inside a message means the next message
        return extent.end if found is None else found.place
    return place  # an offset after the log's end, or removed: the task reports the loss


def _first_place(partition: int, extent: Extent, logs: LogCluster) -> int:
    """Return the offset of the first readable message, which may be after the first byte that nsqd has."""
    found = logs.at(partition, extent.begin) if extent.begin < extent.end else None
    return extent.end if found is None else found.place


def at_time(partition: int, extent: Extent, since_ns: int, logs: LogCluster) -> int:
    """Return the offset of the first message published at *since_ns* or later, or the log's end."""
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


def batch_ends(begins: Places, ends: Places, rows: int, logs: LogCluster) -> Places:
    """Return the ends of a batch with at most about *rows* messages, at or before *ends*.

    As in Spark's Kafka source, a partition's share is proportional to its waiting bytes, and at least one message.
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


def messages_waiting(begins: Places, extents: Mapping[int, Extent], logs: LogCluster) -> int:
    """Return the number of messages between *begins* and the logs' ends."""
    waiting = 0
    for partition, extent in extents.items():
        begin = max(begins.get(partition, 0), extent.begin)
        first = logs.at(partition, begin) if begin < extent.end else None
        if first is not None:
            waiting += extent.messages - first.number + 1
    return waiting


def ranges(begins: Places, ends: Places) -> list[Range]:
    """Return the tasks between two offsets, at most one per partition."""
    found = [Range(partition, begins.get(partition, 0), end) for partition, end in sorted(ends.items())]
    return [one for one in found if one.begin < one.end]
