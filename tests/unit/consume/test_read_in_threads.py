"""What a handler's thread does by itself on a connection, ordered (YZ-6) or not, and what is the loop's; no network."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, cast

import pytest

from gnsq_lite.consume import read_in_threads
from gnsq_lite.consume.ordered_in_threads import OrderedInThreads
from gnsq_lite.consume.thread_pool import ThreadPool
from gnsq_lite.consume.unordered_in_threads import UnorderedInThreads
from gnsq_lite.errors import ConnectionLost
from gnsq_lite.message import Message, finish_new
from gnsq_lite.net.nested import must_not_wait
from gnsq_lite.net.stream import Stream
from gnsq_lite.net.target import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.youzan.ordered import OrderedPartition
from tests.native import native_held_lock, start_native_thread
from tests.unit.consume.test_ordered import Bench, fin, req

pytestmark = [pytest.mark.rule("YZ-6"), pytest.mark.rule("CONN-2")]

HEARTBEAT = struct.pack(">iI", 15, 0) + b"_heartbeat_"


def frame(number: int, attempts: int = 1) -> bytes:
    return struct.pack(">iIqH16s", 31, 2, 0, attempts, b"%016d" % number) + b"x"


class Socket:
    """Both ends of what a thread uses: takes *room* bytes at a time, gives what is in *comes*, errors too."""

    def __init__(self) -> None:
        self.comes = deque[bytes | Exception]()
        self.room = 1000
        self.fails: OSError | None = None
        self.sent: list[bytes] = []

    def receive(self, size: int) -> bytes:
        come = self.comes.popleft() if self.comes else BlockingIOError()
        if isinstance(come, Exception):
            raise come
        return come

    def send(self, data: bytes, flags: int) -> int:
        if self.fails is not None:
            raise self.fails
        if not self.room:
            raise BlockingIOError
        self.sent.append(data[: self.room])
        return len(self.sent[-1])


class ThreadBench(Bench):
    """A connection whose handlers' thread is the test; the stream and the pool are here too."""

    watches, tls, bytes_in, bytes_out, stuck_since = False, None, 0, 0, None
    address = "nsqd:4150"

    max_in_flight, is_alone = 2, True

    read_on: Any = None

    def __init__(self, is_ordered: bool) -> None:
        super().__init__()
        self.socket, self.can_spare, self.is_ordered = Socket(), True, is_ordered
        self.next: list[Message] = []
        self.given: list[Any] = []
        self.rest: list[bytes] = []
        self.released = self.watched = 0
        target = Target(endpoint=self.connection.endpoint, topic="t", channel="ch")
        me: Any = self
        given = (self.connection.loop, target, ConnectionOptions(), me, self.clock)
        adopted, connection = self.connection, UnorderedInThreads(me, *given)
        if is_ordered:
            connection = OrderedInThreads(me, OrderedPartition(self.clock), *given)
        self.connection: Any = connection
        self.connection._stream = me
        self.connection._adopt(adopted.negotiated)
        self.connection.opened_at = self.clock.now()
        self.connection.set_ready(1)
        self.turn()
        self.watched = 0
        with pytest.raises(StopIteration):
            self.connection.run()
        assert self.wait_us == read_in_threads.MOMENT * 1e6

    def come(self, number: int) -> Message:
        """The loop reads a message and hands it to a thread."""
        assert self.connection.loop_reads()
        assert self.read(number)
        return self.handled[-1]

    def read_next(self) -> Message:
        """The thread that has handled the first message reads the second and hands it to itself."""
        first = self.come(1)
        self.socket.comes.append(frame(2))
        finish_new(first)
        (second,) = self.next
        return second

    # -- the stream

    def share(self, sharing: Any, wait_us: int) -> bool:
        self.wait_us = wait_us
        return True

    def calls(self) -> tuple[Any, Any, int, int]:
        return self.socket.receive, self.socket.send, 0, 3

    def offer(self, take: Any) -> None:
        raise StopIteration  # nor does it read on

    def look_after(self) -> None: ...

    def decrypt(self, data: bytes) -> bytes:
        return Stream.decrypt(cast("Any", self), data)

    def give(self, data: Any) -> None:
        self.given.append(data)

    def leave_rest(self, rest: bytes) -> None:
        self.rest.append(rest)

    def release(self) -> None:
        self.released += 1

    def watch(self) -> None:
        self.watched += 1

    def abandon(self) -> None:
        pass

    def close(self, reason: Any) -> None:
        self.closed = reason
        self.released += self.connection.leave()

    def count_successes(self) -> int:
        return 0

    def failed(self, successes: int) -> None:
        pass

    def on_answers_lost(self, count: int) -> None: ...

    # -- the pool

    def can_spare_one(self) -> bool:
        return self.can_spare

    def take_next(self, message: Message) -> None:
        self.next.append(message)

    def take_on(self, messages: list[Message]) -> None:
        self.next.extend(messages)


@pytest.fixture(params=["ordered", "plain"])
def bench(request: pytest.FixtureRequest) -> ThreadBench:
    return ThreadBench(request.param == "ordered")


def test_a_thread_sends_fin_and_goes_on_with_the_next_message_by_itself(bench: ThreadBench) -> None:
    first = bench.come(1)
    bench.socket.comes.extend([frame(2), frame(3)])
    assert finish_new(first)
    assert finish_new(bench.next[0])
    assert bench.socket.sent == [fin(1), fin(2)]
    assert [message.id for message in bench.next] == [b"%016d" % 2, b"%016d" % 3]
    assert (bench.connection.received, bench.connection.finished, bench.connection.in_flight.count) == (3, 2, 1)
    assert bench.connection.in_flight.unanswered() == bench.next[1:]
    assert bench.turn() == b""
    assert bench.connection.in_flight.received_at == bench.clock.now()
    assert finish_new(bench.next[1])
    bench.turn()
    bench.assert_nothing_is_in_flight()


def test_nobody_waits_for_a_finalizer_that_runs_in_a_read(bench: ThreadBench) -> None:
    """It may wait for the loop, which would wait for the lock."""
    held: list[bool] = []

    def make(*about: Any) -> Message:
        held.append(bench.connection._lock._is_owned())
        return Message(*about)

    first = bench.come(1)
    bench.connection._decoder.make_message = make
    bench.socket.comes.append(frame(2))
    finish_new(first)
    assert held == [False]
    assert len(bench.next) == 1


def test_the_loop_reads_on_where_nothing_comes_for_a_moment(bench: ThreadBench) -> None:
    assert finish_new(bench.come(1))
    assert bench.watched == 0
    bench.turn()
    assert bench.watched == 1
    bench.assert_nothing_is_in_flight()
    message = bench.come(2)  # it came at once, as far as the loop could see: a thread waits for the next one again
    bench.clock.advance(1.0)
    bench.socket.comes.append(frame(3))
    assert finish_new(message)
    assert bench.next


def test_no_thread_waits_where_messages_come_now_and_then(bench: ThreadBench) -> None:
    finish_new(bench.come(1))
    bench.turn()
    bench.clock.advance(1.0)
    bench.socket.comes.append(frame(3))
    assert finish_new(bench.come(2))
    assert bench.turn() == fin(2)
    assert bench.socket.comes
    bench.assert_nothing_is_in_flight()


@pytest.mark.parametrize(
    "what", ["the pool", "the flow control", "RDY 0", "a second message", "the end", "a read", "a write"]
)
def test_a_thread_leaves_the_fin_to_the_loop_where_there_is_more_to_do(bench: ThreadBench, what: str) -> None:
    bench.can_spare = what != "the pool"
    bench.watches = what == "the flow control"
    message = bench.come(1)
    if what == "RDY 0":
        bench.connection.set_ready(0)
        assert bench.turn() == b"RDY 0\n"
    if what == "a second message":
        bench.come(1)
    if what == "a read":
        assert bench.connection.loop_reads()
    bench.unsent = 10 if what == "a write" else 0
    if what == "the end":
        bench.connection.send_close(lambda: None)
        bench.turn()
    bench.socket.comes.append(frame(2))
    assert finish_new(message)
    assert bench.socket.sent == []
    assert bench.turn() == fin(1)
    # an ordered one has dropped it, for the first delivery was unanswered
    assert bench.connection.in_flight.count == (what == "a second message" and not bench.is_ordered)


@pytest.mark.rule("MSG-3")
def test_what_the_handler_has_queued_goes_out_before_its_fin(bench: ThreadBench) -> None:
    message = bench.come(1)
    message.touch()
    bench.socket.comes.append(frame(2))
    assert finish_new(message)
    assert bench.socket.sent == []
    assert bench.turn() == b"TOUCH %016d\n" % 1 + fin(1)


@pytest.mark.parametrize("come", [HEARTBEAT, frame(2)[:20], frame(2) + frame(3), frame(2) + HEARTBEAT])
def test_what_is_no_single_message_is_the_loop_s(bench: ThreadBench, come: bytes) -> None:
    message = bench.come(1)
    bench.socket.comes.append(come)
    assert finish_new(message)
    assert (bench.given, bench.next) == ([come], [])
    bench.connection._deliver(frame(9))  # the loop reads it before any thread may read again
    assert finish_new(bench.handled[-1])
    assert bench.socket.sent == [fin(1)]
    assert bench.connection.loop_waits()


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("come", [b"", ConnectionResetError(104, "reset")])
def test_the_end_of_the_stream_is_the_loop_s(bench: ThreadBench, come: Any) -> None:
    message = bench.come(1)
    bench.socket.comes.append(come)
    assert finish_new(message)
    (error,) = bench.given
    assert isinstance(error, ConnectionLost)


def test_the_loop_does_not_read_while_a_thread_does(bench: ThreadBench) -> None:
    message = bench.come(1)
    seen = []

    def receive(size: int) -> bytes:
        seen.extend([bench.connection.loop_reads(), bench.connection.loop_waits()])
        bench.clock.advance(0.001)
        return frame(2)

    bench.connection._receive = receive
    assert finish_new(message)
    assert seen == [False, False]
    assert bench.next[0].received_at == bench.clock.now()


@pytest.mark.rule("HB-1")
def test_the_loop_watches_again_while_a_handler_works(bench: ThreadBench) -> None:
    message = bench.read_next()
    bench.connection.check(bench.clock.now())
    assert bench.watched == 1
    assert bench.connection.loop_reads()  # a heartbeat
    assert bench.connection.loop_waits()
    assert finish_new(message)
    assert bench.socket.sent == [fin(1), fin(2)]


def test_a_message_that_a_thread_has_read_goes_back_as_any_other(bench: ThreadBench) -> None:
    message = bench.read_next()
    bench.turn()
    message.requeue(0.0)
    assert bench.turn() == req(2)
    assert bench.watched
    bench.assert_nothing_is_in_flight()


@pytest.mark.rule("MSG-2")
def test_a_message_that_a_thread_has_read_may_be_answered_later(bench: ThreadBench) -> None:
    later = bench.read_next()
    later.enable_async()
    assert not finish_new(later)
    bench.connection.left_open(later)
    bench.turn()
    assert bench.connection.in_flight.count == 1
    later.finish()
    assert bench.turn() == fin(2)
    assert bench.watched
    bench.assert_nothing_is_in_flight()


@pytest.mark.rule("CLOSE-1")
def test_what_a_thread_reads_after_the_end_has_begun_goes_back(bench: ThreadBench) -> None:
    message = bench.come(1)

    def receive(size: int) -> bytes:
        bench.connection.send_close(lambda: None)
        return frame(2)

    bench.connection._receive = receive
    assert finish_new(message)
    assert (bench.given, bench.next) == ([frame(2)], [])


def test_a_connection_that_is_closed_while_a_thread_reads_is_released_by_that_thread(bench: ThreadBench) -> None:
    message = bench.come(1)

    def receive(size: int) -> bytes:
        bench.connection.close(ConnectionLost("nsqd:4150", "closed"))
        assert bench.released == 0
        return frame(2)

    bench.connection._receive = receive
    assert finish_new(message)
    assert (bench.released, bench.given, bench.next) == (1, [], [])


@pytest.mark.parametrize("where", ["can_spare_one", "_ends", "send", "receive", "_begins", "take_next"])
def test_a_connection_is_closed_where_the_thread_that_has_its_message_is_ended(
    bench: ThreadBench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    message = bench.come(1)
    bench.socket.comes.append(frame(2))

    def end(*about: Any) -> Any:
        raise SystemExit

    owner: Any = bench.connection if where in ("_ends", "_begins") else bench
    monkeypatch.setattr(owner, where, end, raising=False)
    monkeypatch.setattr(bench.connection, "_write", getattr(bench, "send", bench.socket.send))
    monkeypatch.setattr(bench.connection, "_receive", getattr(bench, "receive", bench.socket.receive))
    with pytest.raises(SystemExit):
        finish_new(message)
    bench.turn()
    assert isinstance(bench.closed, ConnectionLost)
    assert bench.released == 1


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(bench: ThreadBench) -> None:
    held = native_held_lock()

    def hold() -> None:
        bench.connection._lock.acquire()
        held.release()

    start_native_thread("holds", hold)
    assert held.acquire(True, 30.0)
    assert not bench.connection._lock.acquire(blocking=False)
    bench.connection.abandon()
    assert bench.connection._lock.acquire(blocking=False)


@pytest.mark.parametrize("room", [0, 5])
def test_what_nsqd_does_not_take_of_a_fin_is_sent_by_the_loop(bench: ThreadBench, room: int) -> None:
    message = bench.come(1)
    bench.socket.room = room
    assert finish_new(message)
    assert bench.rest == [fin(1)[room:]]


def test_a_fin_that_cannot_be_sent_closes_the_connection(bench: ThreadBench) -> None:
    message = bench.come(1)
    bench.socket.fails = BrokenPipeError(32, "broken pipe")
    assert finish_new(message)
    bench.turn()
    assert isinstance(bench.closed, ConnectionLost)


def test_a_pool_spares_a_thread_only_while_another_could_take_what_comes() -> None:
    nothing: Any = None
    pool = ThreadPool(nothing, nothing, 2, nothing)
    assert pool.can_spare_one()
    pool._coming = {1, 2}
    assert not pool.can_spare_one()
    pool._idle.append(nothing)
    assert pool.can_spare_one()
    pool.take_next("a job")
    assert not pool.can_spare_one()
    assert pool.take_queued() == ["a job"]
    pool._closed = True
    assert not pool.can_spare_one()


@pytest.mark.rule("MSG-1")
def test_the_only_thread_waits_where_nothing_can_come_elsewhere() -> None:
    bench = ThreadBench(False)
    bench.can_spare, bench.max_in_flight = False, 1
    message = bench.come(1)
    bench.socket.comes.append(frame(2))
    assert finish_new(message)
    assert bench.socket.sent == [fin(1)]
    assert len(bench.next) == 1


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("what", ["more RDY", "a FIN", "a REQ"])
def test_fins_go_out_together_where_there_are_or_may_be_more_answers(what: str) -> None:
    bench = ThreadBench(False)
    message, other = bench.come(1), b""
    if what == "more RDY":
        bench.connection.set_ready(3)
        assert bench.turn() == b"RDY 3\n"
    else:
        bench.connection.in_flight.count += 1
    if what == "a FIN":
        other = fin(5)
        bench.connection._fins.add(b"%016d" % 5)
    if what == "a REQ":
        other = req(5)
        bench.connection._queue_requeue(other)
    bench.socket.comes.append(frame(2))
    assert finish_new(message)
    assert bench.socket.sent == []
    assert sorted(bench.turn().splitlines()) == sorted((other + fin(1)).splitlines())
    assert bench.connection.in_flight.count == 0


@pytest.mark.parametrize("where", ["_ends", "_begins"])
def test_a_finalizer_that_comes_in_under_the_lock_must_not_wait_for_the_loop(
    bench: ThreadBench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    waits: list[bool] = []
    real = getattr(bench.connection, where)
    monkeypatch.setattr(bench.connection, where, lambda message: (waits.append(must_not_wait()), real(message))[1])
    message = bench.come(1)
    waits.clear()
    bench.socket.comes.append(frame(2))
    assert finish_new(message)
    assert waits == [True]
    assert bench.next
    assert not must_not_wait()
