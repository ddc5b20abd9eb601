"""What a thread does with what has come before it publishes, and with a write that fails."""

from __future__ import annotations

import errno
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.publish.shared_connection import SharedConnection
from gnsq_lite.publish.watched_connection import LOOP
from tests.fakes import FakeClock


class Line:
    """A connection that a thread is about to read, its stream and its coding."""

    def __init__(self, came: list[bytes | None], *, is_coded: bool = True) -> None:
        #: Reads to come, and what each decodes to for the loop; None: to nothing.
        self.came, self.is_coded = came, is_coded
        self.given: list[bytes] = []
        self.left: list[bytes] = []
        self.calls: list[Any] = []
        self.publication: Any = SimpleNamespace(decided=[], gate=None, deadline=float("inf"))
        connection: Any = SharedConnection.__new__(SharedConnection)
        connection._stream = connection._io = self
        connection._lock, connection.clock = threading.Lock(), FakeClock()
        connection.loop = SimpleNamespace(call_soon=self.calls.append)
        connection._pending, connection._followers, connection._queue = deque(), deque(), []
        connection._lent, connection._sender, connection._reader = True, None, self.publication
        connection._reads, connection._bytes_in, connection._bytes_out = False, 0, 0
        self.connection = connection

    def something_came(self) -> bool:
        return bool(self.came)

    def receive(self, size: int) -> bytes:
        return b"record"

    def decode(self, data: bytes, take: Any) -> bytes | None:
        return self.came.pop(0)

    def give(self, data: bytes) -> None:
        self.given.append(data)

    def leave_rest(self, rest: bytes) -> None:
        self.left.append(rest)


@pytest.mark.parametrize("records", [0, 1, 3])
def test_what_decodes_to_nothing_leaves_no_publish_to_the_loop_which_may_be_busy(records: int) -> None:
    line = Line([None] * records)
    assert line.connection._join_alive(line.publication, b"PUB t\n")
    assert line.connection._queue == [(line.publication, b"PUB t\n")]
    assert line.connection._reader is line.connection._sender is line.publication
    assert line.given == []


def test_what_decodes_to_more_is_the_loops_and_so_is_the_publish() -> None:
    line = Line([None, b"a heartbeat"])
    assert not line.connection._join_alive(line.publication, b"PUB t\n")
    assert (line.given, line.connection._queue, line.connection._reader) == ([b"a heartbeat"], [], LOOP)


def test_what_is_not_coded_says_something_and_stays_where_it_is() -> None:
    line = Line([b"a heartbeat"], is_coded=False)
    assert not line.connection._join_alive(line.publication, b"PUB t\n")
    assert (line.came, line.connection._queue) == ([b"a heartbeat"], [])
    assert line.connection._reader is line.publication  # who gives it back


@pytest.mark.rule("PUB-2")
def test_what_is_given_up_before_it_is_sent_is_not_kept_while_nsqd_takes_nothing() -> None:
    line = Line([])
    given_up, waits = (SimpleNamespace(decided=decided) for decided in ([(None, None)], []))
    line.connection._queue = [(given_up, b"PUB 1\n"), (None, b"NOP\n"), (waits, b"PUB 2\n")]
    line.connection.forget_done()
    assert line.connection._queue == [(None, b"NOP\n"), (waits, b"PUB 2\n")]


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EINTR, errno.EPIPE, errno.ECONNRESET])
def test_a_write_that_fails_ends_nothing_where_nsqd_may_have_said_why(number: int) -> None:
    line = Line([])
    line.connection._on_short_write(b"PUB t\n", -1, number)
    assert (line.left, line.connection._sender) == ([b"PUB t\n"], LOOP)
    assert line.calls == [line.connection.drained]
