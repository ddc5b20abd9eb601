"""Handlers' threads that read the next message of their partition (YZ-6).  The tests use no network and do not wait."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.errors import ConnectionLost
from gnsq_lite.message import Message, finish_new
from gnsq_lite.net import read_lease
from gnsq_lite.net.stream import EXCHANGE_SIZE
from tests.frames import HEARTBEAT, message
from tests.native import native_held_lock, start_native_thread
from tests.unit.consume.fake_reader import FakeReader

pytestmark = pytest.mark.rule("YZ-6")


class Threads:
    """The pool of the handlers' threads."""

    def __init__(self) -> None:
        self.next, self.free = list[Message](), 2

    def can_spare(self, count: int) -> bool:
        return self.free >= count

    def take_next(self, job: Message) -> None:
        self.next.append(job)


def frame(number: int, body: bytes = b"x") -> bytes:
    return message(body, id=b"%016d" % number)


def fin(number: int) -> bytes:
    return b"FIN %016d\n" % number


def reader_with_threads() -> tuple[FakeReader, Threads]:
    """Return a Reader that has finished message 0 and handles message 1, which followed at once."""
    threads = Threads()
    reader = FakeReader(ordered=True, threads=threads)
    reader.watches = False
    reader.connection.set_ready(1)
    reader.turn()
    for number in (0, 1):
        assert reader.connection._take_messages(frame(number))
        if number == 0:
            assert finish_new(reader.handled[0])
            reader.turn()
    assert not reader.loop_reads
    return reader, threads


def test_a_thread_reads_the_message_that_follows_its_own() -> None:
    reader, threads = reader_with_threads()
    reader.to_threads += [frame(2), frame(3), b""]
    job = reader.handled[-1]
    for number in (1, 2, 3):
        assert job._connection is reader.connection
        assert job.id == b"%016d" % number
        assert finish_new(job)
        assert reader.sent_by_threads[-1] == fin(number)
        job = threads.next[-1]
    assert (reader.connection.received, reader.connection.finished, reader.connection.in_flight) == (4, 4, 0)
    reader.turn()
    assert reader.loop_reads  # because the last read of the thread brought nothing
    assert reader.connection._take_messages(frame(4))
    assert reader.handled[-1].id == b"%016d" % 4


@pytest.mark.parametrize("data", [b"", HEARTBEAT, frame(2) + HEARTBEAT, frame(2)[:-1], frame(2) + frame(3)])
def test_a_thread_leaves_all_but_one_whole_message_to_the_loop(data: bytes) -> None:
    reader, threads = reader_with_threads()
    reader.to_threads.append(data)
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert (threads.next, reader.loop_reads) == ([], True)
    assert reader.connection._take_messages(frame(2))
    assert reader.handled[-1].id == b"%016d" % 2


def requeue(reader: FakeReader, job: Message) -> None:
    job.requeue(0.0)


def finish(reader: FakeReader, job: Message) -> None:
    job.finish()


def touch(reader: FakeReader, job: Message) -> None:
    job.touch()


def check(reader: FakeReader, job: Message) -> None:
    reader.connection.close_if_dead(reader.clock.now())


def close(reader: FakeReader, job: Message) -> None:
    reader.connection.send_close()


@pytest.mark.rule("HB-1")
@pytest.mark.parametrize("act", [requeue, finish, touch, check, close])
def test_the_loop_reads_again_after_other_answers_and_at_each_check(act: Callable[[FakeReader, Message], None]) -> None:
    reader, threads = reader_with_threads()
    act(reader, reader.handled[-1])
    reader.turn()
    assert reader.loop_reads
    if finish_new(reader.handled[-1]):
        reader.turn()
    assert threads.next == []
    reader.assert_nothing_is_in_flight()


def test_no_thread_waits_for_a_message_if_other_jobs_need_it_or_if_messages_come_slowly() -> None:
    reader, threads = reader_with_threads()
    threads.free = 0
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert reader.loop_reads
    threads.free = 2
    reader.clock.advance(1.0)
    assert reader.connection._take_messages(frame(2))
    assert reader.loop_reads


def test_the_loop_decides_and_writes_when_the_thread_has_released_the_lease() -> None:
    reader, threads = reader_with_threads()

    def while_the_thread_reads(data: bytes, counts: list[int]) -> bytes:
        reader.connection.send(b"RDY 1\n")
        reader.connection._decide(lambda: decided.append(len(threads.next)) or [])
        written.append(reader.turn())
        counts.append(len(data))
        return frame(2)

    written, decided = list[bytes](), list[int]()
    reader.exchange = while_the_thread_reads  # type: ignore[method-assign]
    assert finish_new(reader.handled[-1])
    assert written == [b""]
    assert [each.id for each in threads.next] == [b"%016d" % 2]
    assert reader.turn() == b"RDY 1\n"
    assert (decided, reader.loop_reads) == ([1], True)


def test_no_thread_reads_after_a_long_message_because_it_would_read_only_a_part_of_the_next_one() -> None:
    reader, _ = reader_with_threads()
    reader.to_threads.append(b"")
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert reader.connection._take_messages(frame(2, bytes(EXCHANGE_SIZE)))
    assert reader.loop_reads
    assert finish_new(reader.handled[-1])
    assert reader.connection._take_messages(frame(3))
    assert not reader.loop_reads


def test_no_thread_may_read_if_the_pool_has_only_the_thread_that_handles_the_message() -> None:
    reader, threads = reader_with_threads()
    reader.to_threads.append(b"")
    threads.free = 1
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert reader.connection._take_messages(frame(2))
    assert reader.loop_reads


@pytest.mark.parametrize("last_read", [b"", frame(2)])
def test_closing_ends_the_read_of_a_thread(last_read: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, threads = reader_with_threads()
    monkeypatch.setattr(read_lease, "native_sleep", lambda seconds: None)

    def while_the_thread_reads(data: bytes, counts: list[int]) -> bytes:
        reader.connection.close(ConnectionLost("nsqd:4150", "reset"))
        counts.append(len(data))
        return last_read

    reader.exchange = while_the_thread_reads  # type: ignore[method-assign]
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert (reader.has_ended_reads, threads.next, reader.connection.in_flight) == (True, [], 0)


class Interrupted(BaseException):
    """Raised in the thread by another thread."""


def test_an_exception_in_a_reading_thread_loses_no_message() -> None:
    reader, _ = reader_with_threads()
    reader.to_threads.append(Interrupted())
    with pytest.raises(Interrupted):
        finish_new(reader.handled[-1])
    reader.turn()
    assert (reader.closed, reader.loop_reads) == (None, True)  # the FIN was sent, and the loop has what was read
    assert reader.connection._take_messages(frame(2))
    assert reader.handled[-1].id == b"%016d" % 2


def test_an_exception_before_the_fin_is_sent_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, threads = reader_with_threads()

    def interrupted(count: int) -> bool:
        raise Interrupted

    monkeypatch.setattr(threads, "can_spare", interrupted)
    with pytest.raises(Interrupted):
        finish_new(reader.handled[-1])
    reader.turn()
    assert "interrupted" in str(reader.closed)


def test_the_next_check_writes_what_waited_for_a_thread_that_an_exception_ended_as_it_released_the_lease() -> None:
    reader, _ = reader_with_threads()

    def while_the_thread_reads(data: bytes, counts: list[int]) -> bytes:
        reader.connection.send(b"RDY 1\n")
        assert reader.turn() == b""
        counts.append(len(data))
        return b""

    def interrupted(act: Callable[[], object]) -> None:
        raise Interrupted

    reader.connection._lease._loop = SimpleNamespace(call_soon=interrupted)
    reader.exchange = while_the_thread_reads  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        finish_new(reader.handled[-1])
    reader.turn()
    reader.connection.close_if_dead(reader.clock.now())
    assert (reader.turn(), reader.loop_reads) == (b"RDY 1\n", True)


def finish_interrupted(job: Message, number: int) -> bool:
    """Finish *job* in a thread, and raise Interrupted there at call *number*.  Return whether there are fewer calls.

    Python raises an exception of another thread at the first instruction of a Python function, and after a call of C.
    """
    left, is_over, ended = number, False, native_held_lock()

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        left -= event in ("call", "c_return")
        if left < 0:
            sys.setprofile(None)
            raise Interrupted

    def run() -> None:
        nonlocal is_over
        try:
            gc.disable()  # a finalizer of another object would swallow the exception
            sys.setprofile(profile)
            is_over = finish_new(job)
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
            gc.enable()
            ended.release()

    start_native_thread("handler", run)
    assert ended.acquire(True, 60.0)
    return is_over


def test_an_exception_at_any_call_of_a_reading_thread_leaves_the_partition_a_reader() -> None:
    number, is_over = 0, False
    while not is_over:
        reader, threads = reader_with_threads()
        reader.to_threads.append(frame(2))
        is_over = finish_interrupted(reader.handled[-1], number)
        reader.turn()
        reader.connection.close_if_dead(reader.clock.now())
        reader.turn()
        assert reader.loop_reads or reader.closed, f"after the exception at call {number}"
        number += 1
    assert number > 20
    assert [each.id for each in threads.next] == [b"%016d" % 2]


def test_decisions_that_wait_for_a_thread_wait_again_if_another_thread_reads_after_the_first_one() -> None:
    reader, _ = reader_with_threads()
    lease, decided = reader.connection._lease, list[int]()

    def let_another_thread_read() -> list[Any]:
        lease.holders.add("another thread")
        return []

    def while_the_thread_reads(data: bytes, counts: list[int]) -> bytes:
        reader.connection._decide(let_another_thread_read)
        reader.connection._decide(lambda: decided.append(1) or [])
        counts.append(len(data))
        return b""

    reader.exchange = while_the_thread_reads  # type: ignore[method-assign]
    assert finish_new(reader.handled[-1])
    reader.turn()
    assert decided == []
    lease.holders.discard("another thread")
    lease.report()
    reader.turn()
    assert (decided, reader.loop_reads) == ([1], True)


def test_closing_leaves_the_finished_message_to_the_thread_that_has_the_lease() -> None:
    reader, _ = reader_with_threads()
    ended = reader.connection._ended

    def while_the_thread_reads(data: bytes, counts: list[int]) -> bytes:
        reader.connection.send_close()
        assert [each.id for each in ended] == [b"%016d" % 1]
        counts.append(len(data))
        return b""

    reader.exchange = while_the_thread_reads  # type: ignore[method-assign]
    assert finish_new(reader.handled[-1])
    assert b"CLS\n" in reader.turn()
    assert not ended
    reader.assert_nothing_is_in_flight()
