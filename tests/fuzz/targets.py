"""The fuzz targets: each takes any bytes, and may raise only the documented exceptions.

``python -m tests.fuzz TARGET`` runs one under atheris, guided by coverage; :mod:`tests.fuzz.test_corpus` replays what
was found.  What a target asserts beyond "no other exception" is said in its text.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable
from typing import Any

from gnsq_lite._core import frame_columns, murmur3_32, pack, scan_rows, twin
from gnsq_lite.broker.commands import CommandError, CommandReader, LineTooLong
from gnsq_lite.dialect import Dialect
from gnsq_lite.errors import HTTPResponseError, ProtocolError
from gnsq_lite.message import Message
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.wire.compress import MAX_PIECE, DeflateCodec, SnappyCodec
from gnsq_lite.wire.frames import FrameDecoder
from gnsq_lite.wire.identify import parse_identify_reply
from gnsq_lite.youzan.messages import message_factory, parse_trace_reply
from tests.fakes import decode_message

LIMIT = 4096


class Somebody:
    """A connection, as far as messages know it."""

    topic = channel = address = ""
    read_at = 0.0
    msg_timeout = 60.0


def frames(data: bytes) -> None:
    """The same frames, or the same error, whole and cut in two; what is held never passes the limit."""
    outcomes = []
    cut = data[0] % (len(data) + 1) if data else 0
    for parts in ([data], [data[:cut], data[cut:]]):
        decoder = FrameDecoder(LIMIT, Message, Somebody())
        found: list[Any] = []
        error = ""
        try:
            for part in parts:
                messages, others = decoder.feed(part)
                found += [(m.id, m.attempts, m.timestamp_ns, m.body) for m in messages]
                found += [("frame", frame.kind, frame.body) for frame in others]
                decoder.feed(b"")
        except ProtocolError as raised:
            error = type(raised).__name__
        assert decoder.pending_bytes <= LIMIT + 8
        outcomes.append((sorted(found, key=repr), error))
    assert outcomes[0] == outcomes[1]


def message(data: bytes) -> None:
    """Check that each decoded field is at its place in the layout."""
    try:
        timestamp_ns, attempts, message_id, body = decode_message(data)
    except ProtocolError:
        return
    assert struct.pack(">qH16s", timestamp_ns, attempts, message_id) + body == data


def packed(data: bytes) -> None:
    """MPUB of any bodies, cut at the length that each first byte names: the same in C and in Python, at any limit."""
    limit, rest = (data[0], data[1:]) if data else (0, b"")
    batch: list[Any] = []
    while rest:
        size = rest[0]
        batch.append(rest[1 : 1 + size] if size < 250 else None)
        rest = rest[1 + size :]
    assert pack(b"MPUB t\n", batch, limit) == twin.pack(b"MPUB t\n", batch, limit)
    assert murmur3_32(data) == twin.murmur3_32(data)


def rows(data: bytes) -> None:
    """Rows and columns of any frames, and of parts that are no frames: the same in C and in Python.

    The first byte has the number of messages in one row object, and where an arbitrary part begins.
    """
    most, begin = (data[0] % 4 + 1, data[0] // 4) if data else (1, 0)
    found: list[list[Any]] = [[], []]
    ends = [
        scan(data, min(1, len(data)), LIMIT, lambda *given: given, None, into, most)
        for scan, into in zip((scan_rows, twin.scan_rows), found, strict=True)
    ]
    assert (ends[0], found[0]) == (ends[1], found[1])
    for parts in (tuple(each[1:4] for each in found[0]), ((data, begin, len(data)),)):
        outcomes = []
        for columns in (frame_columns, twin.frame_columns):
            try:
                outcomes.append(columns(parts))
            except ValueError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]


def _codec(codec: Any, data: bytes) -> None:
    """No piece is larger than promised."""
    for part in (data[:7], data[7:]):
        total = 0
        try:
            for piece in codec.decompress(part):
                assert 0 < len(piece) <= max(MAX_PIECE, 22 * len(data))
                total += len(piece)
                if total > 8 * MAX_PIECE:
                    return
        except ProtocolError:
            return


def snappy(data: bytes) -> None:
    """Any bytes, with and without the stream identifier before them."""
    _codec(SnappyCodec(), data)
    _codec(SnappyCodec(), b"\xff\x06\x00\x00sNaPpY" + data)


def deflate(data: bytes) -> None:
    """Any bytes."""
    _codec(DeflateCodec(), data)


def identify(data: bytes) -> None:
    """Times and counts of a reply that is taken are usable."""
    try:
        negotiated = parse_identify_reply(data, ConnectionOptions())
    except ProtocolError:
        return
    assert negotiated.max_rdy_count >= 0
    assert 0 <= negotiated.msg_timeout < 1e16


def lookup(data: bytes) -> None:
    """An address that is taken has a printable host and a port."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        endpoints = Dialect().parse_lookup("t", "read", answer).endpoints
    except HTTPResponseError as error:
        refusal = str(error)
        endpoints = ()
    else:
        refusal = ""
    assert refusal == "" or refusal.isprintable()
    for endpoint in endpoints:
        assert endpoint.host.isprintable()
        assert 1 <= endpoint.port <= 65535


def youzan(data: bytes) -> None:
    """Every layout; the headers of what is taken are None or a dict."""
    for ext, tail in itertools.product((False, True), repeat=2):
        try:
            made = message_factory(None, ext=ext, tail=tail)(Somebody(), 1, 1, data[:16], data[16:])
        except ProtocolError:
            continue
        assert made.headers is None or isinstance(made.headers, dict)
        assert made.tag is None or isinstance(made.tag, str)
    try:
        parse_trace_reply(data)
    except ProtocolError:
        pass


def broker(data: bytes) -> None:
    """The same commands, or the same refusal, whole and byte by byte."""
    outcomes = []
    for size in (len(data) or 1, 1):
        reader = CommandReader(1024, LIMIT)
        found: list[Any] = []
        try:
            for at in range(0, len(data), size):
                reader.feed(data[at : at + size])
                while (command := reader.next()) is not None:
                    found.append(command)
            reader.at_end()
        except CommandError as error:
            found.append(error.frame_body)
        except LineTooLong:
            found.append("too long")
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (frames, message, packed, rows, snappy, deflate, identify, lookup, youzan, broker)
}
