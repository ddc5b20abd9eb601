"""Frames become rows and columns in C and in Python with the same results, and rows have one answer."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import _core
from gnsq_lite._core import Fins, twin
from gnsq_lite.consume.rows import Rows, copies_of, count_ids, count_rows, parts_of, split_all
from gnsq_lite.message import Message, finish_all, finish_all_new

LIMIT = 1000


def frame(number: int, body: bytes, attempts: int = 1, kind: int = 2) -> bytes:
    stamp = 1_700_000_000_000_000_000 + number * 999
    return struct.pack(">iIqH16s", 30 + len(body), kind, stamp, attempts, b"%016x" % number) + body


def scanned(scan: Any, data: bytes, at: int, most: int) -> tuple[int, list[tuple[Any, ...]]]:
    found: list[tuple[Any, ...]] = []
    return scan(data, at, LIMIT, lambda *given: given, "owner", found, most), found


FRAMES = st.lists(
    st.builds(frame, st.integers(0, 2**40), st.binary(max_size=40), st.integers(0, 65535), st.sampled_from([2, 2, 0])),
    max_size=12,
)


@given(FRAMES, st.binary(max_size=40), st.integers(1, 5))
def test_rows_and_columns_are_the_same_in_c_and_python(frames: list[bytes], rest: bytes, most: int) -> None:
    data = b"".join(frames) + rest
    assert scanned(_core.scan_rows, data, 0, most) == scanned(twin.scan_rows, data, 0, most)
    end, found = scanned(_core.scan_rows, data, 0, most)
    parts = tuple(each[1:4] for each in found)
    stamps, attempts, ids, ends, bodies = _core.frame_columns(parts)
    assert (stamps, attempts, ids, ends, bodies) == twin.frame_columns(parts)
    messages: list[tuple[Any, ...]] = []
    assert _core.scan(data, 0, LIMIT, lambda *given: given, None, messages) == end
    assert ids == b"".join(each[3] for each in messages)
    assert bodies == b"".join(each[4] for each in messages)
    assert list(memoryview(stamps).cast("q")) == [each[1] // 1000 for each in messages]
    assert sum(each[4] for each in found) == len(messages)


@pytest.mark.parametrize("columns", [_core.frame_columns, twin.frame_columns])
def test_columns_of_other_bytes_are_refused(columns: Any) -> None:
    data = frame(1, b"body")
    size = len(data)
    for part in [(data, 0, size - 1), (data, 1, size), (data, 0, size + 1), (data, -1, 4), (b"x" * 40, 0, 40)]:
        with pytest.raises(ValueError, match="a part"):
            columns((part,))


class Connection:
    """Counts the FINs of its messages."""

    topic, channel, address, read_at, msg_timeout = "t", "c", "nsqd:4150", 7.0, 60.0

    def __init__(self) -> None:
        self.fins = Fins(lambda: None)
        self.kept: list[Message] = []
        self.requeued: list[bytes] = []

    def finish(self, message: Message) -> None:
        self.fins.add(message.id)

    def keep_parts(self, messages: list[Message]) -> None:
        self.kept += messages

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.requeued.append(message.id)


def rows_of(connection: Any, count: int) -> Rows:
    found: list[Rows] = []
    data = b"".join(frame(number, b"%d" % number, attempts=number + 1) for number in range(count))
    _core.scan_rows(data, 0, LIMIT, Rows, connection, found, 10_000)
    return found[0]


def test_rows_are_finished_together_once() -> None:
    connection = Connection()
    rows = rows_of(connection, 5)
    assert (count_rows([rows]), rows.attempts, rows.received_at) == (5, 5, 7.0)
    finish_all_new([rows])
    finish_all([rows])
    assert count_ids(connection.fins.ids) == 5
    assert b"FIN " + connection.fins.ids[0] + b"\n" == b"".join(b"FIN %016x\n" % n for n in range(5))
    assert connection.kept == []
    assert all(message.has_responded for message in rows.split())


@pytest.mark.parametrize("kept", [False, True])
def test_split_rows_are_answered_one_by_one(kept: bool) -> None:
    connection = Connection()
    rows = rows_of(connection, 3)
    if kept:
        rows.enable_async()
    first, *others = split_all([rows])
    assert rows.has_responded
    assert parts_of([rows]) == [first, *others] == connection.kept
    assert [message.is_async for message in others] == [kept] * 2
    first.requeue(0.0)
    finish_all([first, *others])
    assert (connection.requeued, count_ids(connection.fins.ids)) == ([first.id], 2)
    assert [message.body for message in rows.split()] == [b"0", b"1", b"2"]


def test_only_rows_above_the_attempts_are_split() -> None:
    low, high = rows_of(Connection(), 2), rows_of(Connection(), 4)
    assert split_all([low, high], above=3) == [low, *high.split()]


def test_copies_cannot_be_answered() -> None:
    rows = rows_of(Connection(), 2)
    assert [(copy.body, copy.has_responded) for copy in copies_of(rows)] == [(b"0", True), (b"1", True)]
    assert not rows.has_responded


def test_of_threads_that_finish_and_split_each_message_gets_one_answer() -> None:
    for _ in range(200):
        connection = Connection()
        rows = rows_of(connection, 10)
        threads = [threading.Thread(target=finish_all_new, args=([rows],)), threading.Thread(target=rows.split)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        finish_all_new(rows.split())
        assert count_ids(connection.fins.ids) == 10
