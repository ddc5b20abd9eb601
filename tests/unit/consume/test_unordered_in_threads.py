"""What handlers' threads do by themselves where more than one message is in flight, and what is the loop's (CONN-2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite.consume import read_in_threads
from gnsq_lite.consume.unordered_in_threads import UnorderedInThreads
from gnsq_lite.errors import ConnectionLost, FrameError
from gnsq_lite.message import Message, finish_new
from tests.unit.consume.test_ordered import fin, req
from tests.unit.consume.test_read_in_threads import HEARTBEAT, ThreadBench, frame

pytestmark = pytest.mark.rule("CONN-2")


class Full:
    """A delivery that uses the whole share."""

    is_full, tick_after, limit = True, None, 0

    def __init__(self) -> None:
        self.ticks = 0

    def set_limit(self, limit: int, in_flight: int) -> None:
        self.limit = limit

    def tick(self, received: int, in_flight: int) -> None:
        self.ticks += 1

    def keeps(self, in_flight: int, answers: int) -> bool:
        return False

    def received(self, *about: Any) -> None: ...

    def answered(self, in_flight: int) -> None: ...

    def has_changed(self) -> bool:
        return False

    def take(self) -> None: ...


class Timer:
    """The delivery's next tick."""

    active = True

    def stop(self) -> None: ...

    def close(self) -> None: ...


class ManyBench(ThreadBench):
    """Such a connection with a share of five, whose delivery is full; the test is a thread of its pool."""

    def __init__(self) -> None:
        super().__init__(is_ordered=False)
        self.wait_for_tick()
        self.connection.set_ready(5)
        self.turn()
        assert isinstance(self.connection, UnorderedInThreads)

    def wait_for_tick(self) -> None:
        self.connection._delivery, self.connection._delivery_timer = Full(), Timer()

    def begin(self, *numbers: int) -> list[Message]:
        """The loop reads these and hands them to the pool; their handlers return."""
        messages = self.loop_reads(*numbers)
        assert all(finish_new(message) for message in messages)
        return messages

    def loop_reads(self, *numbers: int) -> list[Message]:
        """The loop's reader hands these to the pool, and waits."""
        assert self.connection.loop_reads()
        self.connection.read_at = self.clock.now()
        self.connection._deliver(b"".join(map(frame, numbers)))
        assert self.connection.loop_waits()
        return self.handled[-len(numbers) :]

    def read_on(self) -> bool:  # type: ignore[override]
        return bool(self.connection.read_on())

    def finish(self) -> list[bytes]:
        """The handlers of what this thread has queued return; the ids."""
        messages, self.next = self.next, []
        assert all(finish_new(message) for message in messages)
        return [message.id for message in messages]

    # the pool's

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("asked" if name == "read_on" else name, value)  # the pool asks; here, the test does


@pytest.fixture
def bench() -> ManyBench:
    return ManyBench()


def ids(*numbers: int) -> list[bytes]:
    return [b"%016d" % number for number in numbers]


@pytest.mark.rule("MSG-1")
def test_a_thread_sends_the_fins_of_all_that_came_and_queues_what_comes_next(bench: ManyBench) -> None:
    bench.begin(1, 2)
    bench.due.clear()  # the loop has its turn later
    bench.socket.comes.extend([frame(3) + frame(4) + frame(5), frame(6)])
    assert bench.read_on()
    assert bench.socket.sent == [fin(1) + fin(2)]
    assert bench.connection.in_flight.count == 3
    assert bench.finish() == ids(3, 4, 5)
    assert bench.due == []  # no FIN wakes the loop
    assert bench.read_on()
    assert bench.socket.sent[1:] == [fin(3) + fin(4) + fin(5)]
    assert bench.finish() == ids(6)
    assert (bench.connection.received, bench.connection.finished) == (6, 5)
    assert not bench.read_on()  # nothing comes for a moment
    assert bench.socket.sent[2:] == [fin(6)]
    assert bench.turn() == b""
    assert bench.watched == 1
    bench.assert_nothing_is_in_flight()


def test_the_loop_sends_fins_by_itself_once_no_thread_reads_on(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.socket.comes.append(frame(2))
    assert bench.read_on()
    bench.finish()
    assert not bench.read_on()
    bench.begin(3)
    assert bench.turn() == fin(3)


@pytest.mark.rule("HB-1")
def test_the_loop_reads_again_with_the_next_tick_while_handlers_take_long(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.socket.comes.append(frame(2))
    assert bench.read_on()
    bench.watched = 0
    bench.connection._look_at_delivery()
    bench.turn()
    assert bench.watched == 1


def test_fins_that_wait_for_a_handler_go_out_with_the_next_tick(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.socket.comes.append(frame(2) + frame(3))
    assert bench.read_on()
    slow, quick = bench.next
    assert finish_new(quick)
    assert (bench.due, bench.watched) == ([], 1)
    bench.connection._look_at_delivery()
    assert bench.turn() == fin(3)
    assert bench.watched > 1  # and more is read meanwhile
    assert finish_new(slow)
    assert bench.turn() == fin(2)


def a_handler_takes_long(bench: ManyBench) -> None:
    bench.clock.advance(2 * read_in_threads.MOMENT)


def a_message_is_with_another_handler(bench: ManyBench) -> None:
    bench.loop_reads(9)


def a_message_is_answered_later(bench: ManyBench) -> None:
    bench.loop_reads(9)[0].enable_async()


def a_message_failed(bench: ManyBench) -> None:
    bench.connection._queue_requeue(req(9))
    bench.connection.in_flight.count += 1


def touched(bench: ManyBench) -> None:
    bench.connection.send(b"TOUCH %016d\n" % 9)


def rdy_0(bench: ManyBench) -> None:
    bench.connection.set_ready(0)


def rdy_1(bench: ManyBench) -> None:
    bench.connection.set_ready(1)


def the_flow_control_watches(bench: ManyBench) -> None:
    bench.watches = True


def another_connection(bench: ManyBench) -> None:
    bench.is_alone = False


def part_of_the_share_is_used(bench: ManyBench) -> None:
    bench.connection._delivery.is_full = False


def no_tick_is_to_come(bench: ManyBench) -> None:
    bench.connection._delivery_timer = None


def a_signal_handler_raised_before_the_tick_was_started(bench: ManyBench) -> None:
    bench.connection._delivery_timer.active = False


def the_next_tick_is_far(bench: ManyBench) -> None:
    bench.connection._look_at = bench.clock.now() + 60.0  # after messages have expired


def the_loop_reads(bench: ManyBench) -> None:
    assert bench.connection.loop_reads()


def no_choice_of_rdy(bench: ManyBench) -> None:
    bench.connection._delivery = None


def nsqd_takes_no_bytes(bench: ManyBench) -> None:
    bench.unsent = 10


MORE_TO_DO = [
    a_handler_takes_long,
    a_message_is_with_another_handler,
    a_message_is_answered_later,
    a_message_failed,
    touched,
    rdy_0,
    rdy_1,
    the_flow_control_watches,
    another_connection,
    part_of_the_share_is_used,
    no_tick_is_to_come,
    a_signal_handler_raised_before_the_tick_was_started,
    the_next_tick_is_far,
    the_loop_reads,
    no_choice_of_rdy,
    nsqd_takes_no_bytes,
]


@pytest.mark.parametrize("what", MORE_TO_DO, ids=lambda what: what.__name__)
@pytest.mark.parametrize("who", ["the loop", "a thread"])
def test_all_is_the_loop_s_where_there_is_more_to_do(
    bench: ManyBench, what: Callable[[ManyBench], None], who: str
) -> None:
    bench.begin(1)
    if who == "a thread":
        bench.turn()
        bench.socket.comes.append(frame(2))
        assert bench.read_on()
        bench.finish()
    bench.socket.sent, bench.watched = [], 0
    what(bench)
    bench.socket.comes.append(frame(3))
    assert not bench.read_on()
    assert bench.socket.sent == []
    assert fin(2 if who == "a thread" else 1) in bench.turn()
    assert bench.watched or what is the_loop_reads
    assert bench.socket.comes  # and nobody has read


def test_threads_ask_the_connection_that_has_ticks(bench: ManyBench) -> None:
    """Not the one that was given RDY last: that may be gone, and the RDY of the other the same as before."""
    bench.asked = None
    bench.connection._look_at_delivery()
    assert bench.asked == bench.connection.read_on


@pytest.mark.rule("CLOSE-1")
def test_fins_after_the_end_has_begun_wait_for_nobody(bench: ManyBench) -> None:
    bench.begin(1)
    bench.socket.comes.append(frame(2) + frame(3))
    assert bench.read_on()
    bench.turn()
    finish_new(bench.next[0])
    bench.connection.send_close(lambda: None)
    assert bench.turn() == b"CLS\n" + fin(2)
    finish_new(bench.next[1])
    assert bench.turn() == fin(3)
    assert not bench.read_on()


def test_a_second_thread_does_not_read_beside_the_first(bench: ManyBench) -> None:
    bench.begin(1)
    seen = []

    def receive(size: int) -> bytes:
        seen.extend([bench.read_on(), bench.connection.loop_reads()])
        return frame(2)

    bench.connection._receive = receive
    assert bench.read_on()
    assert seen == [False, False]
    assert bench.socket.sent == [fin(1)]


@pytest.mark.rule("WIRE-3")
def test_a_message_may_come_in_parts_to_threads_and_the_loop(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.watched = 0
    bench.socket.comes.extend([frame(2) + frame(3)[:20], frame(3)[20:] + frame(4)[:10]])
    assert bench.read_on()
    assert bench.finish() == ids(2)
    assert bench.read_on()
    assert bench.finish() == ids(3)
    bench.socket.comes.append(frame(4)[10:20])
    assert not bench.read_on()
    bench.turn()
    assert bench.watched
    bench.connection._deliver(frame(4)[20:] + frame(5))
    assert [message.id for message in bench.handled[-2:]] == ids(4, 5)


@pytest.mark.rule("HB-1")
def test_another_frame_is_the_loop_s_and_what_came_before_it_is_handled(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.socket.comes.append(frame(2) + HEARTBEAT + frame(3))
    assert bench.read_on()
    assert bench.finish() == ids(2)
    assert not bench.read_on()  # the loop reads what is there
    assert bench.given == [b""]
    bench.connection._deliver(b"")
    assert bench.handled[-1].id == b"%016d" % 3
    assert bench.turn() == b"NOP\n" + fin(2)
    assert bench.connection.loop_waits()


@pytest.mark.rule("WIRE-4")
def test_a_read_that_no_frame_begins_ends_the_connection_in_the_loop(bench: ManyBench) -> None:
    bench.begin(1)
    bench.socket.comes.append(frame(2) + b"\xff" * 30)
    assert bench.read_on()
    assert bench.finish() == ids(2)
    with pytest.raises(FrameError):
        bench.connection._deliver(bench.given[0])


def test_more_than_rdy_allows_rests_in_the_loop(bench: ManyBench) -> None:
    bench.begin(1)
    bench.turn()
    bench.socket.comes.append(b"".join(map(frame, range(2, 20))))
    assert bench.read_on()
    assert bench.given == [b""]
    assert bench.connection._must_wait
    bench.turn()
    assert bench.counted == 18  # the flow control is told


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("come", [b"", ConnectionResetError(104, "reset")])
def test_the_end_of_the_stream_is_the_loop_s(bench: ManyBench, come: Any) -> None:
    bench.begin(1)
    bench.socket.comes.append(come)
    assert not bench.read_on()
    (error,) = bench.given
    assert isinstance(error, ConnectionLost)


def test_a_connection_that_is_closed_while_a_thread_reads_is_released_by_that_thread(bench: ManyBench) -> None:
    bench.begin(1)

    def receive(size: int) -> bytes:
        bench.connection.close(ConnectionLost("nsqd:4150", "closed"))
        assert bench.released == 0
        return frame(2)

    bench.connection._receive = receive
    assert not bench.read_on()
    assert (bench.released, bench.given, bench.next) == (1, [], [])


@pytest.mark.parametrize("where", ["_is_calm", "send", "receive", "take_on"])
def test_a_connection_is_closed_where_the_thread_that_reads_on_is_ended(
    bench: ManyBench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    bench.begin(1)
    bench.socket.comes.append(frame(2))

    def end(*about: Any) -> Any:
        raise SystemExit

    owner: Any = bench.connection if where == "_is_calm" else bench
    monkeypatch.setattr(owner, where, end, raising=False)
    monkeypatch.setattr(bench.connection, "_write", getattr(bench, "send", bench.socket.send))
    monkeypatch.setattr(bench.connection, "_receive", getattr(bench, "receive", bench.socket.receive))
    with pytest.raises(SystemExit):
        bench.read_on()
    bench.turn()
    assert isinstance(bench.closed, ConnectionLost)
    assert bench.released == 1


def test_a_thread_that_is_ended_beside_the_one_that_reads_leaves_it_the_socket(bench: ManyBench) -> None:
    bench.begin(1)
    bench.connection._reader = 12345  # another thread

    def end(*about: Any) -> Any:
        raise SystemExit

    bench.connection._close_for_ended_thread()
    bench.turn()
    assert isinstance(bench.closed, ConnectionLost)
    assert bench.released == 0
