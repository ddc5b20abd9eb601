"""What a client of Youzan's NSQ sends beyond plain NSQ's commands.

Sources: nsqdserver/protocol_v2.go:419 @0.3.7-HA.1.13.0, go-nsq/command.go.  Sizes are big-endian 32-bit numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Literal

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.wire.commands import check_bodies, check_body, listed, multipublish_body, multipublish_packed
from gnsq_lite.wire.names import check_channel, check_topic
from gnsq_lite.youzan.constants import MAX_PARTITIONS
from gnsq_lite.youzan.headers import check_trace_id

_size = Struct(">I").pack
_u64 = Struct(">Q").pack
_u16 = Struct(">H").pack

_INT64 = 2**63 - 1


def check_partition(partition: int) -> int:
    """Return *partition*, 0 to 254.  Raises OptionError."""
    return check_number("partition", partition, 0, MAX_PARTITIONS - 1, whole=True)


# -- where a new channel starts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartOffset:
    """Where a channel is to start reading a partition (YZ-17); make one with the class methods.

    Only the first consumer of a channel moves it; the server ignores the offset of later ones.
    """

    kind: Literal["timestamp", "msgcount", "virtual_queue", "special"]
    value: int

    def __post_init__(self) -> None:
        if self.kind not in ("timestamp", "msgcount", "virtual_queue", "special"):
            raise OptionError("start_offset", self.kind, "must be made by one of StartOffset's class methods")
        low = {"msgcount": 1, "special": -1}.get(self.kind, 0)
        check_number("start_offset", self.value, low, -1 if self.kind == "special" else _INT64, whole=True)

    @classmethod
    def at_time(cls, seconds: float) -> StartOffset:
        """Start at the first message published at *seconds* since 1970 or later; whole seconds, rounded down."""
        return cls("timestamp", int(check_number("start_offset", seconds, 0, 2**62)))

    @classmethod
    def at_message(cls, number: int) -> StartOffset:
        """Start at the *number*-th message of the partition; the first is 1."""
        return cls("msgcount", number)

    @classmethod
    def at_byte(cls, offset: int) -> StartOffset:
        """Start at a byte of the partition's queue, as ``Receipt.queue_offset`` tells it, or at the next message."""
        return cls("virtual_queue", offset)

    @classmethod
    def end(cls) -> StartOffset:
        """Start with what is published from now on."""
        return cls("special", -1)

    def encode(self) -> bytes:
        """Return the word of SUB_ADVANCED.  nsqdserver/protocol_v2.go:60"""
        return b"%b:%d" % (self.kind.encode("ascii"), self.value)


# -- subscribing ------------------------------------------------------------------------------------------------------


def subscribe(topic: str, channel: str, partition: int | None = None, verb: bytes = b"SUB") -> bytes:
    """SUB of one partition; None: the one this node leads (YZ-3).  Raises InvalidName, OptionError.

    With SUB_ORDERED as *verb* one message at a time; older servers call it SUB_ORDER (YZ-6).
    """
    names = verb + b" " + check_topic(topic) + b" " + check_channel(channel)
    return names + b"\n" if partition is None else names + b" %d\n" % check_partition(partition)


def subscribe_advanced(
    topic: str, channel: str, partition: int | None = None, start: StartOffset | None = None
) -> bytes:
    """SUB_ADVANCED: messages come with their place in the queue; *start* moves a channel without consumers (YZ-17).

    The server ignores the partition where *start* is given (protocol_v2.go:1034 counts four words) and takes one that
    the node leads: only safe on a node that leads one partition of the topic.  Raises InvalidName, OptionError.
    """
    line = subscribe(topic, channel, partition, b"SUB_ADVANCED")
    if start is None:
        return line
    if partition is None:
        raise OptionError("partition", None, "a start offset needs a partition")
    return line[:-1] + b" " + start.encode() + b"\n"


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(
    topic: str, body: bytes, partition: int | None = None, *, trace_id: int | None = None, header: bytes | None = None
) -> bytes:
    """PUB to a partition (YZ-4), PUB_TRACE with *trace_id* (YZ-9), PUB_EXT with *header* (YZ-15).

    A header is the JSON of ``headers.encode_headers``.  The answer is OK, or a trace reply if a trace id was sent.
    Raises InvalidName, OptionError, BodyTypeError, InvalidBody, MessageTooLarge.
    """
    check_body(body)
    verb, before = b"PUB", b""
    if header is not None:
        verb, before = b"PUB_EXT", _u16(len(header)) + header
    elif trace_id is not None:
        verb, before = b"PUB_TRACE", _u64(check_trace_id(trace_id))
    return _head(verb, topic, partition) + _size(len(before) + len(body)) + before + body


def publish_head(topic: str, partition: int | None) -> bytes:
    """Return the line of a PUB, which the body's size follows.  Raises InvalidName, OptionError."""
    return _head(b"PUB", topic, partition)


def multipublish(
    topic: str,
    bodies: Iterable[bytes],
    partition: int | None = None,
    *,
    trace_ids: Sequence[int] | None = None,
    headers: Sequence[bytes] | None = None,
) -> bytes:
    """MPUB to a partition (YZ-4), MPUB_TRACE with *trace_ids*, MPUB_EXT with *headers*; one of these for each body.

    A header is JSON, or ``b""`` for a body without.  The answer is OK; to MPUB_TRACE it is one trace reply: id and
    offset of the first message, the size of all.  After it has refused MPUB_EXT the server does not read the rest of
    the body: the connection is of no use any more.  Raises as :func:`publish`.
    """
    if headers is not None:
        verb, before = b"MPUB_EXT", [_u16(len(header)) + header for header in headers]
    elif trace_ids is not None:
        verb, before = b"MPUB_TRACE", [_u64(check_trace_id(each)) for each in trace_ids]
    else:
        return multipublish_packed(_head(b"MPUB", topic, partition), listed(bodies))
    parts = [head + body for head, body in zip(before, check_bodies(bodies), strict=True)]
    return _head(verb, topic, partition) + multipublish_body(parts)


@lru_cache(10_000, typed=True)  # True is no 1
def _head(verb: bytes, topic: str, partition: int | None) -> bytes:
    line = verb + b" " + check_topic(topic)
    return line + b"\n" if partition is None else line + b" %d\n" % check_partition(partition)
