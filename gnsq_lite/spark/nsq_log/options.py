"""Options of ``format("nsq_log")``, with the names of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number, check_ranges
from gnsq_lite.options import parse_address
from gnsq_lite.spark.options import camel, opt, seconds_of
from gnsq_lite.wire.names import check_channel, check_topic
from gnsq_lite.youzan.commands import check_partition

#: Offsets that mean the log's end and beginning, as in Spark's Kafka source.
LATEST, EARLIEST = -1, -2


@dataclass(frozen=True)
class LogPosition:
    """Start or end of a read: a time, or offsets by partition.

    *offsets* maps some partitions to a byte offset, LATEST or EARLIEST.  *otherwise* applies to each partition that
    *offsets* omits.  *time* is in milliseconds since 1970.
    """

    otherwise: int = LATEST
    offsets: Mapping[int, int] = field(default_factory=dict)
    time: int | None = None


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Options to read a topic of Youzan's NSQ as a log, batch and streaming."""

    lookupd_http_addresses: tuple[str, ...] = opt(
        (), "comma-separated host:port of the cluster's nsqlookupds; required"
    )
    topic: str = opt("", "topic to read; required")
    partitions: tuple[int, ...] = opt((), "comma-separated topic partitions; default: all, and partitions added later")
    channel: str = opt("spark", "prefix of the names of the ephemeral channels that tasks read through")
    nsq: Mapping[str, Any] = field(
        default_factory=dict, repr=False, metadata={"doc": "connection options, given as nsq.NAME", "kind": ""}
    )
    starting_offsets: str = opt("", "earliest, latest, or JSON; default: earliest for a batch, latest for a stream")
    starting_timestamp: int | None = opt(
        None, "start at the first message published at this time (ms since 1970)", low=0
    )
    ending_offsets: str = opt("latest", "batch: latest, or JSON")
    ending_timestamp: int | None = opt(None, "batch: end before the first message published at this time", low=0)
    max_offsets_per_trigger: int | None = opt(None, "maximum messages of a micro-batch", low=1)
    min_offsets_per_trigger: int | None = opt(None, "minimum messages of a micro-batch", low=1)
    max_trigger_delay: str = opt("15m", "maximum wait for minOffsetsPerTrigger: 500ms, 30s, 15m, 1h")
    fail_on_data_loss: bool = opt(True, "fail if messages are missing: removed by retention, or topic recreated")
    poll_timeout_ms: int = opt(120_000, "maximum time a task waits for the next message of its range", low=100)
    connect_timeout_ms: int = opt(60_000, "maximum time a partition may have no leader at the query's start", low=10)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.topic:
            raise OptionError("topic", "", "is required")
        if not self.channel:
            raise OptionError("channel", "", "is required")
        check_topic(self.topic)
        check_channel(self.channel[:20])
        if len(self.channel) > 20 or "#" in self.channel:
            raise OptionError("channel", self.channel, "must have at most 20 characters, and no '#'")
        if not self.lookupd_http_addresses:
            raise OptionError("lookupdHTTPAddresses", (), "is required: only a topic of a cluster is a log")
        for address in self.lookupd_http_addresses:
            parse_address(address, default_port=4161, option="lookupdHTTPAddresses")
        for partition in self.partitions:
            check_partition(partition)
        self.starting(batch=False)
        self.ending()
        seconds_of(self.max_trigger_delay)

    def starting(self, *, batch: bool) -> LogPosition:
        """Return the position where reading starts.  Raises OptionError."""
        text = self.starting_offsets or ("earliest" if batch else "latest")
        words = {"earliest": EARLIEST, "latest": LATEST}
        return self._position("starting_offsets", text, self.starting_timestamp, words)

    def ending(self) -> LogPosition:
        """Return the position where a batch ends.  Raises OptionError."""
        return self._position("ending_offsets", self.ending_offsets, self.ending_timestamp, {"latest": LATEST})

    def _position(self, name: str, text: str, time: int | None, words: Mapping[str, int]) -> LogPosition:
        """Return the position of *time* if given, or else of the offsets *text*, as Spark's Kafka source does."""
        word = words.get(text.strip().lower())
        if time is not None:
            return LogPosition(time=time)
        if word is not None:
            return LogPosition(word)
        lowest = min(words.values())  # also the offset of partitions that the JSON omits
        return LogPosition(lowest, self._per_partition(name, text, low=lowest))

    def _per_partition(self, name: str, text: str, low: int) -> dict[int, int]:
        shown = f'{{"{self.topic}": {{"0": 23}}}}'
        try:
            given = json.loads(text)[self.topic]
            found = {int(partition): offset for partition, offset in given.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OptionError(camel(name), text, f"must be JSON such as {shown}") from None
        for number in found.values():
            check_number(camel(name), number, low, (1 << 63) - 1, whole=True)
        return found
