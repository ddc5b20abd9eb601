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


def subscribe(topic: str, channel: str, partition: int | None = None) -> bytes:
    """SUB of one partition; None: the one this node leads (YZ-3).  Raises InvalidName, OptionError."""
    return _subscribe(b"SUB", topic, channel, partition)


def subscribe_ordered(topic: str, channel: str, partition: int | None = None) -> bytes:
    """SUB_ORDERED: one message at a time (YZ-6).  Raises InvalidName, OptionError."""
    return _subscribe(b"SUB_ORDERED", topic, channel, partition)


def subscribe_order(topic: str, channel: str, partition: int | None = None) -> bytes:
    """SUB_ORDER, which older servers call SUB_ORDERED (YZ-6).  Raises InvalidName, OptionError."""
    return _subscribe(b"SUB_ORDER", topic, channel, partition)


def subscribe_advanced(
    topic: str, channel: str, partition: int | None = None, start: StartOffset | None = None
) -> bytes:
    """SUB_ADVANCED: messages come with their place in the queue; *start* moves a channel without consumers (YZ-17).

    The server ignores the partition where *start* is given (protocol_v2.go:1034 counts four words) and takes one that
    the node leads: only safe on a node that leads one partition of the topic.  Raises InvalidName, OptionError.
    """
    line = _subscribe(b"SUB_ADVANCED", topic, channel, partition)
    if start is None:
        return line
    if partition is None:
        raise OptionError("partition", None, "a start offset needs a partition")
    return line[:-1] + b" " + start.encode() + b"\n"


def _subscribe(verb: bytes, topic: str, channel: str, partition: int | None) -> bytes:
    names = verb + b" " + check_topic(topic) + b" " + check_channel(channel)
    return names + b"\n" if partition is None else names + b" %d\n" % check_partition(partition)


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(topic: str, body: bytes, partition: int | None = None) -> bytes:
    """PUB to a partition (YZ-4); answered with OK.

    Raises InvalidName, OptionError, BodyTypeError, InvalidBody, MessageTooLarge.
    """
    check_body(body)
    return publish_head(topic, partition) + _size(len(body)) + body


def publish_head(topic: str, partition: int | None) -> bytes:
    """Return the line of a PUB, which the body's size follows.  Raises InvalidName, OptionError."""
    return _head(b"PUB", topic, partition)


def multipublish(topic: str, bodies: Iterable[bytes], partition: int | None = None) -> bytes:
    """MPUB to a partition (YZ-4); answered with OK.  Raises as :func:`publish`."""
    return multipublish_packed(_head(b"MPUB", topic, partition), listed(bodies))


def publish_trace(topic: str, body: bytes, partition: int | None = None, trace_id: int = 0) -> bytes:
    """PUB_TRACE (YZ-9); answered with a trace reply.  The size counts the trace id.  Raises as :func:`publish`."""
    check_body(body)
    payload = _u64(check_trace_id(trace_id)) + body
    return _head(b"PUB_TRACE", topic, partition) + _size(len(payload)) + payload


def multipublish_trace(
    topic: str, bodies: Iterable[bytes], partition: int | None = None, trace_ids: Sequence[int] | int = 0
) -> bytes:
    """MPUB_TRACE; answered with one trace reply: id and offset of the first message, the size of all.

    *trace_ids* is one for each body, or one for all.  Raises as :func:`publish`.
    """
    checked = check_bodies(bodies)
    ids = [trace_ids] * len(checked) if isinstance(trace_ids, int) else list(trace_ids)
    parts = [_u64(check_trace_id(one)) + body for one, body in zip(ids, checked, strict=True)]
    return _head(b"MPUB_TRACE", topic, partition) + multipublish_body(parts)


def publish_ext(topic: str, body: bytes, header: bytes, partition: int | None = None) -> bytes:
    """PUB_EXT with the JSON of ``headers.encode_headers`` (YZ-15).

    Answered with OK, or with a trace reply where the header has a trace id.  Raises as :func:`publish`.
    """
    check_body(body)
    payload = _u16(len(header)) + header + body
    return _head(b"PUB_EXT", topic, partition) + _size(len(payload)) + payload


def multipublish_ext(
    topic: str, bodies: Iterable[bytes], headers: Sequence[bytes], partition: int | None = None
) -> bytes:
    """MPUB_EXT; *headers* has one JSON for each body, ``b""`` for a body without; answered with OK.

    After an error the server does not read the rest of the body: the connection is of no use any more.  Raises as
    :func:`publish`.
    """
    checked = check_bodies(bodies)
    parts = [_u16(len(header)) + header + body for header, body in zip(headers, checked, strict=True)]
    return _head(b"MPUB_EXT", topic, partition) + multipublish_body(parts)


@lru_cache(10_000, typed=True)  # True is no 1
def _head(verb: bytes, topic: str, partition: int | None) -> bytes:
    line = verb + b" " + check_topic(topic)
    return line + b"\n" if partition is None else line + b" %d\n" % check_partition(partition)
