"""Functions of lists of messages have the same results in C and in Python, for messages in any state."""

from __future__ import annotations

import gc
import struct
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import _core
from gnsq_lite._core import Fins
from gnsq_lite.message import ASYNC, EXPIRED, LATE_ASYNC, NEW, Message, finish_all, finish_all_new, finish_new
from gnsq_lite.youzan.messages import message_factory

ANSWERED = -1
TOKENS = st.sampled_from([NEW, ASYNC, EXPIRED, LATE_ASYNC, ANSWERED])


class Connection:
    """Records the answers to its messages.  *fins* collects FINs; if it is None, each FIN is a call."""

    topic, channel, address, read_at = "topic", "channel", "host:4150", 1.5

    def __init__(self, fins: Any = None) -> None:
        self.fins = fins
        self.seen: list[tuple[str, bytes]] = []

    def finish(self, message: Message) -> None:
        self.seen.append(("FIN", message.id))

    handled = finish

    def answer_late(self, message: Message, *, finished: bool) -> None:
        self.seen.append(("late", message.id))


class Counted(int):
    """A number that is not exactly an int."""


def made(connection: Any, tokens: list[int], kind: Any = Message) -> list[Any]:
    messages = [kind(connection, n * 1000, n + 1, b"%016x" % n, b"x" * n) for n in range(len(tokens))]
    for message, token in zip(messages, tokens, strict=True):
        if token == ANSWERED:
            del message._token
        else:
            message._token = token
    return messages


def tokens_of(messages: list[Any]) -> list[int]:
    return [getattr(message, "_token", ANSWERED) for message in messages]


@pytest.mark.rule("MSG-2")
@pytest.mark.parametrize("gathers", [True, False])
@given(tokens=st.lists(TOKENS, max_size=8), kept_too=st.booleans())
def test_a_list_is_finished_as_its_messages_are_one_by_one(gathers: bool, tokens: list[int], kept_too: bool) -> None:
    def connection() -> Connection:
        return Connection(Fins(lambda: None) if gathers else None)

    here, one_by_one = connection(), connection()
    messages, others = made(here, tokens), made(one_by_one, tokens)
    if kept_too:
        finish_all(messages)
        for message in others:
            if not message.has_responded:
                message.finish()
    else:
        finish_all_new(messages)
        for message in others:
            finish_new(message)
    assert tokens_of(messages) == tokens_of(others)
    assert answered(here) == answered(one_by_one)


def answered(connection: Connection) -> set[bytes]:
    """Return the ids of the messages that got a FIN, collected or sent at once."""
    gathered = [] if connection.fins is None else connection.fins.ids
    found = gathered + [message_id for _, message_id in connection.seen]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.rule("MSG-2")
def test_a_youzan_message_and_another_object_in_a_list_are_finished_too() -> None:
    class Other:
        finished = 0

        def finish(self) -> None:
            self.finished += 1

    connection = Connection(Fins(lambda: None))
    youzan = message_factory(None)(connection, 1, 1, b"y" * 16, b"")
    other = Other()
    finish_all([youzan, other, Message(connection, 1, 1, b"m" * 16, b"")])  # type: ignore[list-item, arg-type]
    assert answered(connection) == {b"y" * 16, b"m" * 16}
    assert other.finished == 1
    for odd in (None, (), object()) if _core.is_accelerated else ():
        with pytest.raises(TypeError):
            _core.finish_open(odd, True)  # type: ignore[arg-type]


@given(st.lists(TOKENS, max_size=4), st.integers(0, 5))
def test_all_new_is_true_only_for_new_messages(tokens: list[int], most: int) -> None:
    messages = made(Connection(), tokens)
    plain = all(token == NEW for token in tokens) and len(tokens) <= most
    assert _core.all_new(messages, most) in ((plain,) if _core.is_accelerated else (False,))
    assert not _core.all_new([*messages, object()], 9)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), st.binary(max_size=9)), max_size=6))
def test_columns_hold_what_the_messages_do(rows: list[tuple[int, int, bytes]]) -> None:
    connection = Connection()
    ids = [b"%016x" % n for n in range(len(rows))]
    messages: list[Any] = [Message(connection, *row[:2], one, row[2]) for row, one in zip(rows, ids, strict=True)]  # type: ignore[arg-type]
    found = _core.columns(messages)
    if not rows or not _core.is_accelerated:
        assert found is None
        return
    assert found is not None
    owner, stamps, attempts, joined, ends, bodies = found
    count = len(rows)
    assert owner is connection
    assert list(zip(struct.unpack(f"={count}q", stamps), struct.unpack(f"={count}i", attempts), strict=True)) == [
        row[:2] for row in rows
    ]
    assert joined == b"".join(ids)
    places = struct.unpack(f"={count + 1}i", ends)
    assert [bodies[a:b] for a, b in pairwise(places)] == [row[2] for row in rows]
    second = _core.columns([*messages, Message(Connection(), 1, 1, b"i" * 16, b"")])  # type: ignore[arg-type]
    assert second is not None
    assert second[0] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", b"short"),
        ("id", "text of 16 chars"),
        ("body", bytearray(b"x")),
        ("body", None),
        ("attempts", 2**31),
        ("attempts", Counted(1)),
        ("timestamp_ns", 2**63),
        ("timestamp_ns", 1.5),
    ],
)
def test_columns_refuses_a_list_with_one_odd_message(field: str, value: Any) -> None:
    messages = made(Connection(), [NEW, NEW])
    assert (_core.columns(messages) is not None) == _core.is_accelerated
    setattr(messages[1], field, value)
    assert _core.columns(messages) is None
    delattr(messages[1], field)
    assert _core.columns(messages) is None
    assert _core.columns([*messages[:1], object()]) is None


def test_wake_may_change_the_list_and_its_error_propagates() -> None:
    def wake() -> None:
        messages.clear()
        raise ZeroDivisionError

    messages = made(Connection(Fins(wake)), [NEW] * 3)
    first, second = messages[0], messages[1]
    with pytest.raises(ZeroDivisionError):
        finish_all_new(messages)
    assert tokens_of([first, second]) == [ANSWERED, NEW]


def test_no_reference_is_kept_and_none_is_lost_by_lists() -> None:
    connection = Connection(Fins(lambda: None))
    messages = made(connection, [ASYNC, NEW, EXPIRED])
    gc.collect()
    watched = [connection, connection.fins, *messages, messages[1].id, messages[1].body]
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(20):
        _core.columns(messages)
        _core.all_new(messages, 1)
        _core.finish_open(messages, True)
        connection.fins.ids.clear()
        for message in messages:
            message._token = NEW
    del message
    assert [sys.getrefcount(one) for one in watched] == before
