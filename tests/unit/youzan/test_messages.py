"""Messages, ids and trace replies are read from the very bytes Youzan's servers sent."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import _core
from gnsq_lite.errors import ProtocolError
from gnsq_lite.message import finish_new
from gnsq_lite.youzan.headers import encode_headers
from gnsq_lite.youzan.messages import (
    Content,
    PublishReceipt,
    YouzanMessage,
    decode_content,
    message_factory,
    parse_trace_reply,
    partition_of_id,
    split_id,
)
from tests.fakes import decode_message
from tests.golden.youzan import conversation
from tests.unit.youzan.owner import OWNER

TRACE = 0x1122334455667788


def messages_of(name: str, partition: int | None = None, **layout: bool) -> list[YouzanMessage]:
    make = message_factory(partition, **layout)
    return [make(OWNER, *decode_message(data)) for kind, data in conversation(name).frames() if kind == 2]


def replies_of(name: str) -> list[bytes]:
    return [data for kind, data in conversation(name).frames() if kind == 0]


@pytest.mark.rule("YZ-10")
def test_a_plain_message_has_both_halves_of_its_id() -> None:
    (message,) = messages_of("sub_plain", 0)
    assert (message.body, message.attempts, message.trace_id, message.partition) == (b"hello", 1, TRACE, 0)
    assert message.internal_id == split_id(message.id)[0] > 0
    assert (message.queue_offset, message.raw_size, message.headers, message.tag) == (None, None, None, None)


@pytest.mark.rule("YZ-10")
def test_the_partition_is_in_the_internal_id() -> None:
    (message,) = messages_of("sub_partition_1")
    assert message.body == b"one"
    assert message.partition == partition_of_id(message.internal_id) == 1


def test_sub_advanced_tells_the_place_in_the_queue() -> None:
    (message,) = messages_of("sub_advanced", tail=True)
    receipt = parse_trace_reply(replies_of("sub_advanced")[1])
    assert message.body == b"adv"
    assert (message.queue_offset, message.raw_size) == (receipt.queue_offset, receipt.raw_size)
    assert (message.internal_id, message.trace_id) == (receipt.internal_id, receipt.trace_id)


@pytest.mark.parametrize("name", ["sub_advanced", "sub_ordered"])
def test_a_message_of_a_known_partition_is_like_any_other(name: str) -> None:
    known, told = messages_of(name, 0, tail=True), messages_of(name, tail=True)
    slots = [
        slot for kind in YouzanMessage.__mro__ for slot in getattr(kind, "__slots__", ()) if slot != "_extended_to"
    ]
    assert [[getattr(m, slot) for slot in slots] for m in known] == [[getattr(m, slot) for slot in slots] for m in told]


@pytest.mark.rule("YZ-6")
def test_an_ordered_message_comes_again_before_any_later_one() -> None:
    messages = messages_of("sub_ordered", tail=True)
    assert [(m.body, m.attempts) for m in messages[:3]] == [(b"first", 1), (b"first", 2), (b"second", 1)]


@pytest.mark.rule("YZ-15")
@pytest.mark.parametrize(("name", "tail"), [("sub_ext", False), ("sub_ext_advanced", True)])
def test_ext_headers_are_on_the_message_and_a_message_without_has_none(name: str, tail: bool) -> None:
    first, second = messages_of(name, ext=True, tail=tail)
    assert (first.body, first.headers, first.header_bytes) == (b"withext", {"k": "v"}, b'{"k": "v"}')
    assert (second.body, second.headers, second.header_bytes) == (b"noext", None, None)
    assert (first.queue_offset is not None) is tail


def test_an_ordered_ext_topic_has_the_header_before_the_place() -> None:
    (message,) = messages_of("sub_ext_ordered", ext=True, tail=True)
    assert (message.body, message.headers, message.raw_size) == (b"withext", {"k": "v"}, 50)


@pytest.mark.rule("YZ-16")
def test_a_tag_is_read_from_the_headers() -> None:
    (message,) = messages_of("sub_tag", ext=True)
    assert (message.body, message.tag) == (b"tagged", "tagA")


def content(version: int, header: bytes, body: bytes = b"body") -> Content:
    return decode_content(bytes([version]) + len(header).to_bytes(2, "big") + header + body, ext=True)


@pytest.mark.parametrize("header", [b"[1]", b"nope", b"", b"\xff", b"[" * 60000])
def test_a_header_that_is_no_object_is_empty_and_kept(header: bytes) -> None:
    message = YouzanMessage(OWNER, 0, 1, b"\0" * 16, content(4, header))
    assert (message.headers, message.header_bytes, message.tag, message.body) == ({}, header, None, b"body")


def test_a_tag_that_is_no_text_is_none() -> None:
    message = YouzanMessage(OWNER, 0, 1, b"\0" * 16, content(4, b'{"##client_dispatch_tag":5}'))
    assert message.tag is None


@pytest.mark.parametrize(
    ("data", "layout", "why"),
    [
        (b"", {"ext": True}, "no ext version"),
        (b"\x01", {"ext": True}, "unknown ext version 1"),
        (b"\x04", {"ext": True}, "an ext header"),
        (b"\x04\x00", {"ext": True}, "an ext header"),
        (b"\x04\x00\x02a", {"ext": True}, "header of 2 bytes, but only 1 came"),
        (b"x" * 11, {"tail": True}, "11 bytes for the queue offset"),
        (b"\x00" + b"x" * 11, {"ext": True, "tail": True}, "11 bytes for the queue offset"),
        (b"\x04\x00\x01{" + b"x" * 11, {"ext": True, "tail": True}, "11 bytes for the queue offset"),
    ],
)
def test_a_message_shorter_than_it_says_is_a_frame_error(data: bytes, layout: dict[str, bool], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        message_factory(0, **layout)(OWNER, 0, 1, b"\0" * 16, data)


@given(
    st.binary(max_size=40),
    st.none() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_what_is_laid_out_is_read_back(body: bytes, headers: Any, ext: bool, tail: bool) -> None:
    data = b""
    header = json.dumps(headers).encode() if headers is not None else None
    if ext:
        data = b"\0" if header is None else b"\4" + len(header).to_bytes(2, "big") + header
    if tail:
        data += (77).to_bytes(8, "big") + (5).to_bytes(4, "big")
    place = (77, 5) if tail else (None, None)
    assert decode_content(data + body, ext=ext, tail=tail) == (body, header if ext else None, *place)


@given(st.binary(max_size=60), st.booleans(), st.booleans())
def test_any_bytes_give_a_message_or_a_frame_error(data: bytes, ext: bool, tail: bool) -> None:
    try:
        message = message_factory(None, ext=ext, tail=tail)(OWNER, 0, 1, b"\0" * 16, data)
    except ProtocolError:
        return
    assert data.endswith(message.body)
    assert message.headers is None or isinstance(message.headers, dict)


@pytest.mark.rule("YZ-9")
def test_a_trace_reply_is_a_receipt() -> None:
    (reply,) = replies_of("pub_trace")
    receipt = parse_trace_reply(reply)
    assert receipt.trace_id == TRACE
    assert (receipt.internal_id, receipt.raw_size, receipt.partition) == (6, 36, 0)
    (reply,) = replies_of("pub_trace_zero")
    assert parse_trace_reply(reply).partition == 1
    (reply,) = replies_of("mpub_trace")
    assert parse_trace_reply(reply) == PublishReceipt(7, 0, receipt.queue_offset + 36, 33 + 33, 0)
    (reply,) = replies_of("pub_ext_trace")
    assert parse_trace_reply(reply).trace_id == 4660


@pytest.mark.parametrize("reply", [b"OK", b"", b"OK" + b"\0" * 27, b"OK" + b"\0" * 29, b"KO" + b"\0" * 28])
def test_any_other_answer_to_a_trace_is_a_protocol_error(reply: bytes) -> None:
    with pytest.raises(ProtocolError, match="traced publish"):
        parse_trace_reply(reply)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_an_id_of_another_length_is_a_frame_error(length: int) -> None:
    with pytest.raises(ProtocolError, match="16"):
        split_id(b"x" * length)


@pytest.mark.rule("YZ-15")
def test_a_message_with_its_place_is_the_same_by_either_scan() -> None:
    make = message_factory(5, tail=True)
    data = b"".join(
        struct.pack(">iIqH16s", 30 + len(rest), 2, 7, 3, b"i" * 16) + rest
        for rest in (struct.pack(">qI", 100, 40) + b"body", struct.pack(">qI", -1, 0))
    )
    owner = SimpleNamespace(read_at=1.0, fins=_core.Fins(list))
    for scan in (_core.scan, _core.twin.scan):
        found: list[Any] = []
        assert scan(data, 0, 1000, make, owner, found) == len(data)
        first, second = found
        assert (first.queue_offset, first.raw_size, first.body, first.partition) == (100, 40, b"body", 5)
        assert (second.queue_offset, second.raw_size, second.body, second.partition) == (-1, 0, b"", 5)
        assert (first.id, first.attempts, first.timestamp_ns, first.received_at) == (b"i" * 16, 3, 7, 1.0)
        assert (first.headers, first.header_bytes) == (None, None)
        assert finish_new(first)


@pytest.mark.rule("YZ-15")
def test_a_frame_too_short_for_a_place_is_refused_by_either_scan() -> None:
    make = message_factory(5, tail=True)
    data = struct.pack(">iIqH16s", 30 + 11, 2, 7, 3, b"i" * 16) + b"x" * 11
    for scan in (_core.scan, _core.twin.scan):
        with pytest.raises(ProtocolError, match="11 bytes for the queue offset"):
            scan(data, 0, 1000, make, OWNER, [])


@pytest.mark.rule("YZ-15")
def test_the_headers_of_every_message_can_be_published_again() -> None:
    sent = encode_headers({"a": 1, "##client_dispatch_tag": "t"}, 7)
    message = YouzanMessage(OWNER, 0, 1, b"\0" * 16, (b"x", sent, None, None))
    assert message.headers == {"a": 1, "##client_dispatch_tag": "t"}
    assert encode_headers(message.headers, 7) == message.header_bytes == sent
