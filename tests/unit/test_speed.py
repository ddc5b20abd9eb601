"""The C extension and its Python version return the same results for any bytes.

If the extension was not built, these tests compare Python with itself.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import _core
from gnsq_lite._core import twin
from gnsq_lite.errors import AlreadyAnswered, ProtocolError
from gnsq_lite.message import NEW, Message
from gnsq_lite.wire.frames import FrameDecoder
from gnsq_lite.youzan.messages import YouzanMessage, message_factory
from tests.frames import ID, frame, message

FIELDS = ("_connection", "timestamp_ns", "attempts", "id", "body", "_received_at", "_token")


class FakeConnection:
    topic, channel, address = "topic", "channel", "host:4150"

    def __init__(self) -> None:
        self.read_at = 12.5


def listed(*values: Any) -> list[Any]:
    return list(values)


def seen(found: list[Message]) -> list[tuple[Any, ...]]:
    return [(type(m), *(getattr(m, name) for name in FIELDS)) for m in found]


messages = st.builds(message, st.binary(max_size=60), st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535))
frames = st.one_of(
    messages, messages, st.builds(frame, st.integers(-1, 4), st.binary(max_size=40)), st.binary(max_size=40)
)
streams = st.lists(frames, max_size=6).map(b"".join)


@pytest.mark.rule("WIRE-4")
@given(streams, st.integers(0, 50), st.integers(0, 120))
def test_both_scans_find_the_same_and_stop_at_the_same_place_in_any_bytes(data: bytes, at: int, limit: int) -> None:
    fast: list[Any] = []
    pure: list[Any] = []
    end = _core.scan(data, at, limit, listed, "owner", fast)
    assert end == twin.scan(data, at, limit, listed, "owner", pure)
    assert fast == pure


@pytest.mark.rule("WIRE-5")
@pytest.mark.parametrize("body", [b"", b"x", b"xy"])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_both_scans_agree_at_each_cut_and_around_the_limit(body: bytes, over: int) -> None:
    one = message(body, -1, 65535)
    data, limit = one + one, len(one) - 4 + over
    for length in range(len(data) + 1):
        fast: list[Any] = []
        pure: list[Any] = []
        end = _core.scan(data[:length], 0, limit, listed, None, fast)
        assert end == twin.scan(data[:length], 0, limit, listed, None, pure)
        assert fast == pure
        assert end == (length // len(one) * len(one) if over >= 0 else 0)


@given(streams, st.integers(-(2**31), 2**31))
def test_both_scans_make_the_same_messages_of_any_bytes(data: bytes, limit: int) -> None:
    connection = FakeConnection()
    fast: list[Message] = []
    pure: list[Message] = []
    end = _core.scan(data, 0, limit, Message, connection, fast)
    assert end == twin.scan(data, 0, limit, Message, connection, pure)
    assert seen(fast) == seen(pure)


@given(st.lists(st.booleans(), max_size=8))
def test_both_ways_agree_whether_all_messages_are_answered(answered: list[bool]) -> None:
    found = [Message(FakeConnection(), 1, 1, ID, b"") for _ in answered]  # type: ignore[arg-type]
    for one, is_answered in zip(found, answered, strict=True):
        if is_answered:
            del one._token
    assert _core.all_answered(found) == twin.all_answered(found) == all(answered)


def test_messages_of_a_subclass_may_be_answered_and_any_other_object_is_not() -> None:
    youzan = message_factory(None)(FakeConnection(), 1, 1, ID, b"")
    assert not _core.all_answered([youzan])
    del youzan._token
    assert _core.all_answered([youzan])
    if _core.is_accelerated:
        assert not _core.all_answered([youzan, object()])


def test_a_message_from_the_scan_is_like_one_that_was_constructed() -> None:
    connection = FakeConnection()
    found: list[Message] = []
    _core.scan(message(b"body", 7, 3), 0, 1000, Message, connection, found)
    (made,) = found
    assert seen([made]) == seen([Message(connection, 7, 3, ID, b"body")])  # type: ignore[arg-type]
    assert gc.is_tracked(made)
    assert not made.has_responded
    made._token = NEW + 1
    assert made.is_async
    del made._token
    with pytest.raises(AttributeError):
        del made._token
    with pytest.raises(AlreadyAnswered):
        made.finish()


def test_a_subclass_is_made_by_its_own_constructor() -> None:
    class Loud(Message):
        __slots__ = ("loud",)

        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            self.loud = self.body.upper()

    found: list[Any] = []
    _core.scan(message(b"a"), 0, 1000, Loud, FakeConnection(), found)
    _core.scan(message(b"a"), 0, 1000, message_factory(None), FakeConnection(), found)
    assert found[0].loud == b"A"
    assert isinstance(found[1], YouzanMessage)


def test_an_error_of_the_message_factory_propagates_after_earlier_messages() -> None:
    def picky(owner: Any, timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
        if body == b"bad":
            raise ProtocolError("no")
        return body

    found: list[bytes] = []
    with pytest.raises(ProtocolError):
        _core.scan(message(b"good") + message(b"bad") + message(b"good"), 0, 1000, picky, None, found)
    assert found == [b"good"]
    with pytest.raises(AttributeError):  # an owner without read_at
        _core.scan(message(b"a"), 0, 1000, Message, None, [])


def test_no_reference_is_kept_and_none_is_lost() -> None:
    connection = FakeConnection()
    connection.read_at = float("7.25")
    data = message(b"x" * 40, 2**50, 300) * 20
    decoder: FrameDecoder[Message] = FrameDecoder(1000, Message, connection)

    def counts() -> list[int]:
        return [sys.getrefcount(one) for one in (connection, connection.read_at, data)]

    def references(one: Message) -> list[int]:
        return [sys.getrefcount(getattr(one, name)) for name in ("timestamp_ns", "attempts", "id", "body")]

    by_hand: list[Message] = []
    twin.scan(data, 0, 1000, Message, FakeConnection(), by_hand)
    gc.collect()
    before, classes = counts(), sys.getrefcount(Message)
    for _ in range(50):
        found, _ = decoder.feed(data)
        assert references(found[5]) == references(by_hand[5])
        found[3]._received_at = found[3]  # type: ignore[assignment]  # a cycle, for the collector
        found = []
        assert decoder.feed(data[:100])[1] == []
        decoder.feed(data[100:])
    gc.collect()
    assert counts() == before
    assert sys.getrefcount(Message) == classes
