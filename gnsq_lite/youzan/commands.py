"""Encodes the commands that Youzan's NSQ adds to plain NSQ.

Sources: nsqdserver/protocol_v2.go:419 @0.3.7-HA.1.13.0, go-nsq/command.go.  Body sizes are big-endian uint32s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal

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
    """Return *partition* if it is a number from 0 to 254.  Raises OptionError for any other value."""
    if type(partition) is int and 0 <= partition < MAX_PARTITIONS:
        return partition
    return check_number("partition", partition, 0, MAX_PARTITIONS - 1, whole=True)


# -- start offset of a channel ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartOffset:
    """Position at which a channel starts to read a partition (YZ-17).  Use the class methods to make an object.

    The server ignores the offset if the channel already has a consumer.
    """

    kind: Literal["timestamp", "msgcount", "virtual_queue", "special"]
    value: int

    @classmethod
    def at_time(cls, seconds: float) -> StartOffset:
        """Start at the first message that was published at Unix time *seconds*, rounded down, or later."""
        return cls("timestamp", int(check_number("start_offset", seconds, 0, 2**62)))

    @classmethod
    def at_message(cls, number: int) -> StartOffset:
        """Start at message *number* of the partition.  The first message has the number 1."""
        return cls("msgcount", check_number("start_offset", number, 1, _INT64, whole=True))

    @classmethod
    def at_byte(cls, offset: int) -> StartOffset:
        """Start at the first message that begins at byte *offset* (``PublishReceipt.queue_offset``) or later."""
        return cls("virtual_queue", check_number("start_offset", offset, 0, _INT64, whole=True))

    @classmethod
    def end(cls) -> StartOffset:
        """Start at the end of the partition.  The channel gets only messages that are published later."""
        return cls("special", -1)

    def encode(self) -> bytes:
        """Encode the offset as a parameter of SUB_ADVANCED.  nsqdserver/protocol_v2.go:60"""
        return b"%b:%d" % (self.kind.encode("ascii"), self.value)


# -- subscribing ------------------------------------------------------------------------------------------------------


def subscribe(topic: str, channel: str, partition: int | None = None, verb: bytes = b"SUB") -> bytes:
    """Encode SUB to *partition* (YZ-3).  If *partition* is None, nsqd chooses a partition that it leads.

    If *verb* is SUB_ORDERED, nsqd sends one message at a time (YZ-6).  Raises InvalidName, OptionError.
    """
    names = verb + b" " + check_topic(topic) + b" " + check_channel(channel)
    return names + b"\n" if partition is None else names + b" %d\n" % check_partition(partition)


def subscribe_advanced(
    topic: str, channel: str, partition: int | None = None, start: StartOffset | None = None
) -> bytes:
    """Encode SUB_ADVANCED (YZ-17).  nsqd then sends the queue offset of each message.

    *start* moves a channel without consumers.  With *start*, nsqd ignores *partition* (protocol_v2.go:1034 counts four
    words) and chooses a partition that it leads.  So nsqd must lead only one partition of the topic.
    Raises InvalidName, OptionError.
    """
    if start is None:
        return subscribe(topic, channel, partition, b"SUB_ADVANCED")
    return subscribe(topic, channel, partition or 0, b"SUB_ADVANCED")[:-1] + b" " + start.encode() + b"\n"


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(
    topic: str, body: bytes, partition: int | None = None, *, trace_id: int | None = None, header: bytes | None = None
) -> bytes:
    """Encode PUB to a partition (YZ-4), PUB_TRACE with *trace_id* (YZ-9), or PUB_EXT with *header* (YZ-15).

    *header* is a result of ``headers.encode_headers``.  nsqd answers with a trace reply if a trace id was sent, and
    with OK if not.  Raises InvalidName, OptionError, BodyTypeError, InvalidBody, MessageTooLarge.
    """
    check_body(body)
    verb, before = b"PUB", b""
    if header is not None:
        verb, before = b"PUB_EXT", _u16(len(header)) + header
    elif trace_id is not None:
        verb, before = b"PUB_TRACE", _u64(check_trace_id(trace_id))
    return command_line(verb, topic, partition) + _size(len(before) + len(body)) + before + body


def multipublish(
    topic: str,
    bodies: Iterable[bytes],
    partition: int | None = None,
    *,
    trace_ids: Sequence[int] | None = None,
    headers: Sequence[bytes] | None = None,
) -> bytes:
    """Encode MPUB to a partition (YZ-4), MPUB_TRACE with *trace_ids*, or MPUB_EXT with *headers*.

    *trace_ids* and *headers* have one item for each body.  A header is JSON, or ``b""`` for no headers.  nsqd answers
    MPUB_TRACE with one trace reply, and MPUB and MPUB_EXT with OK.  The trace reply has the id and offset of the first
    message, and the size of all messages.  nsqd does not read the rest of a refused MPUB_EXT, so the caller
    must close the connection.  Raises the errors of :func:`publish`.
    """
    if headers is not None:
        verb, before = b"MPUB_EXT", [_u16(len(header)) + header for header in headers]
    elif trace_ids is not None:
        verb, before = b"MPUB_TRACE", [_u64(check_trace_id(each)) for each in trace_ids]
    else:
        return multipublish_packed(command_line(b"MPUB", topic, partition), listed(bodies))
    parts = [head + body for head, body in zip(before, check_bodies(bodies), strict=True)]
    return command_line(verb, topic, partition) + multipublish_body(parts)


class PublishHeads(dict[int, bytes]):
    """The PUB command lines of *topic*, by valid partition."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __missing__(self, partition: int) -> bytes:
        head = self[partition] = command_line(b"PUB", self._topic, partition)
        return head


def command_line(verb: bytes, topic: str, partition: int | None) -> bytes:
    """Encode the command line of a publish.  Raises InvalidName, OptionError."""
    line = verb + b" " + check_topic(topic)
    return line + b"\n" if partition is None else line + b" %d\n" % check_partition(partition)
