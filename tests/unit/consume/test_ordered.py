"""What an ordered connection writes and counts (YZ-6).  The tests use no network and do not wait."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from greenlet import getcurrent

from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.unconfirmed import Unconfirmed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ConnectionLost, NotWritableError
from gnsq_lite.message import Message
from gnsq_lite.net.connection import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.policy.ordered import OrderedPartition
from gnsq_lite.wire.identify import Negotiated
from tests.fakes import FakeClock
from tests.native import native_ident

pytestmark = pytest.mark.rule("YZ-6")


class Bench:
    """A connection in a loop that runs only in turn().  This object is its stream, flow control and owner."""

    closed: Any = None
    tls = stuck_since = None
    error = None
    unsent = 0
    watches = True

    def __init__(
        self,
        handle: Callable[[Message], object] = lambda message: None,
        reads_in_hub: bool = True,
        after: Bench | None = None,
    ) -> None:
        self.clock, self.due = after.clock if after else FakeClock(), list[Callable[[], None]]()
        self.sent: list[bytes] = []
        self.handled: list[Message] = []
        self.counted = self.lost = 0
        self.flow, self._handle = self, handle
        self.hub: Any = SimpleNamespace(loop=None)
        self.spawned: list[tuple[Any, ...]] = []
        loop: Any = SimpleNamespace(
            hub=self.hub, call_soon=self.due.append, ident=native_ident(), spawn=lambda *call: self.spawned.append(call)
        )
        loop.start = lambda watcher, act, **options: watcher.start(act, **options)
        loop.guard = contextlib.nullcontext()
        target = Target(endpoint=Endpoint("nsqd", 4150, 3), topic="t", channel="ch")
        owner: Any = self
        partition = OrderedPartition(self.clock)
        self.unconfirmed = after.unconfirmed if after else Unconfirmed(self.clock)
        self.connection = OrderedConnection(
            partition,
            self.unconfirmed,
            loop,
            target,
            ConnectionOptions(),
            owner,
            self.clock,
            reads_in_hub=reads_in_hub,
        )
        self.connection._stream = owner
        self.connection._adopt(Negotiated(negotiated=True, msg_timeout=60.0))
        self.connection.opened_at = self.clock.now()

    def turn(self) -> bytes:
        """Run the scheduled callbacks.  Return the bytes that were written since the last turn."""
        while self.due:
            self.due.pop(0)()
        written, self.sent = b"".join(self.sent), []
        return written

    def message(self, number: int) -> Message:
        """Return a message that was not received."""
        return Message(self.connection, 0, 1, b"%016d" % number, b"x")

    def read(self, *numbers: int, attempts: int = 1) -> bool:
        """Pass a read of these messages to the connection.  Return False if the reading greenlet must handle it."""
        frames = (struct.pack(">iIqH16s", 31, 2, 0, attempts, b"%016d" % number) + b"x" for number in numbers)
        return self.connection._take_messages(b"".join(frames))

    # -- the stream, the flow control and the owner

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def send(self, data: bytes, flags: int) -> int:
        self.sent.append(data)
        return len(data)

    def sent_beside_loop(self, data: bytes, sent: int) -> None:
        assert sent == len(data)

    def received(self, connection: Any, count: int) -> None:
        self.counted += count

    def answered(self, connection: Any, count: int, *, success: bool) -> None:
        self.counted -= count

    def rest(self, connection: Any, resting: bool) -> None:
        pass

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        return asked or 0.0

    def handle(self, messages: list[Message]) -> None:
        for message in messages:
            self.handled.append(message)
            self._handle(message)

    def close(self, reason: Any) -> None:
        self.closed = reason

    def on_closed(self, connection: Any) -> None:
        pass

    def on_answers_lost(self, count: int) -> None:
        self.lost += count

    # -- what has to be true when all is answered

    def assert_nothing_is_in_flight(self) -> None:
        assert self.connection.in_flight == self.counted == 0
        assert self.connection.unanswered() == []


def fin(number: int) -> bytes:
    return b"FIN %016d\n" % number


def req(number: int) -> bytes:
    return b"REQ %016d 0\n" % number


def test_a_message_whose_handler_returns_is_finished() -> None:
    bench = Bench(Message.finish)
    for number in range(3):
        assert bench.read(number)
        assert bench.turn() == fin(number)
    assert bench.connection.finished == bench.connection.received == 3
    bench.assert_nothing_is_in_flight()


def test_a_message_whose_handler_waits_is_counted_until_it_is_answered() -> None:
    bench = Bench()
    assert bench.read(1)
    assert bench.connection.in_flight == bench.counted == 1
    bench.handled[0].finish()
    assert bench.turn() == fin(1)
    bench.assert_nothing_is_in_flight()


def test_messages_of_one_read_are_handled_one_after_the_other() -> None:
    bench = Bench()
    assert bench.read(1, 2, 3)
    for number in (1, 2, 3):
        assert len(bench.handled) == number
        bench.handled[-1].finish()
        assert bench.turn() == fin(number)
    bench.assert_nothing_is_in_flight()


def test_a_read_with_other_frames_is_left_to_the_reading_greenlet() -> None:
    bench = Bench()
    for data in (b"", b"\0", struct.pack(">iI11s", 15, 0, b"_heartbeat_"), struct.pack(">iIqH16s", 31, 2, 0, 1, b"1")):
        assert not bench.connection._take_messages(data)
    assert bench.handled == []
    assert bench.read(1)


def test_answers_that_were_queued_before_a_fin_are_sent_before_it() -> None:
    bench = Bench()
    bench.read(1)
    bench.handled[0].touch()
    bench.handled[0].finish()
    assert bench.turn().split(b" ")[0] == b"TOUCH"
    bench.assert_nothing_is_in_flight()


@pytest.mark.rule("MSG-5")
def test_a_fin_counts_for_each_delivery_of_its_message() -> None:
    bench = Bench()
    for _ in range(3):  # a server sends messages in flight again if its channel is reset
        assert bench.read(1)
    assert len(bench.handled) == 1
    bench.handled[0].finish()
    assert bench.turn() == fin(1)
    bench.assert_nothing_is_in_flight()
    bench.read(2)
    assert len(bench.handled) == 2


@pytest.mark.rule("MSG-5")
def test_a_req_counts_for_each_delivery_of_its_message() -> None:
    bench = Bench()
    bench.read(1)
    bench.read(1)
    bench.handled[0].requeue(0.0)
    assert bench.turn() == req(1)
    bench.assert_nothing_is_in_flight()


def test_unanswered_messages_are_requeued_once_at_the_end() -> None:
    bench = Bench()
    bench.read(1, 2)
    bench.connection.send_close()
    assert bench.turn() == b"CLS\n" + req(2)
    assert bench.connection.unanswered() == bench.handled
    bench.handled[0].finish()
    bench.turn()
    bench.assert_nothing_is_in_flight()


@pytest.mark.rule("MSG-5")
@pytest.mark.parametrize("answer", [Message.finish, Message.requeue])
def test_messages_of_a_closed_connection_are_not_handled(answer: Callable[[Message], None]) -> None:
    bench = Bench()
    bench.read(1, 2)
    bench.connection.close(ConnectionLost("nsqd:4150", "reset"))
    answer(bench.handled[0])
    assert bench.turn() == b""
    assert (len(bench.handled), bench.lost, bench.connection.in_flight) == (1, 1, 0)


@pytest.mark.rule("MSG-6")
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_partition_continues_after_a_late_answer(comes_again: bool) -> None:
    bench = Bench()
    bench.read(1)
    bench.clock.advance(62.0)
    if comes_again:
        bench.read(1, attempts=2)
    assert bench.connection.expire_overdue(bench.clock.now()) == bench.handled
    bench.handled[0].finish()
    assert bench.turn() == fin(1)
    bench.assert_nothing_is_in_flight()
    bench.read(2)
    assert len(bench.handled) == 2


def test_an_inline_handler_never_runs_in_the_hub() -> None:
    bench = Bench(reads_in_hub=False)
    bench.read(1)
    bench.read(1, attempts=2)
    bench.connection.loop.hub = getcurrent()
    bench.connection.handler_returned_unanswered(bench.handled[0])
    bench.turn()
    assert len(bench.handled) == 1
    ((_, handle, again),) = bench.spawned
    handle(again)
    assert [message.attempts for message in bench.handled] == [1, 2]


def test_single_messages_are_not_reported_while_flow_control_does_not_watch() -> None:
    bench = Bench(Message.finish)
    bench.watches = False
    bench.connection.set_ready(1)
    bench.turn()
    for number in range(3):
        bench.clock.advance(1.0)
        assert bench.read(number)
        assert bench.turn() == fin(number)
        assert bench.connection.received_at == bench.handled[-1].received_at == bench.clock.now()
    assert bench.connection.finished == bench.connection.received == 3
    bench.assert_nothing_is_in_flight()
    assert not bench.read()
    bench.read(3, 4)  # this server sends several messages at a time
    assert bench.turn() + bench.turn() == fin(3) + fin(4)
    assert bench.connection.in_flight == 0


def lost_after_finishing(number: int, seconds: float = 0.0) -> Bench:
    """Return a connection that finished a message, and was lost *seconds* later."""
    bench = Bench(Message.finish)
    bench.read(number)
    bench.turn()
    bench.connection.close_if_dead(bench.clock.now())
    bench.clock.advance(seconds)
    bench.connection.close(ConnectionLost("nsqd:4150", "EOF"))
    return bench


def test_a_message_that_was_finished_before_its_connection_was_lost_is_not_handled_again() -> None:
    bench, handled = lost_after_finishing(1), Handled()
    for _ in range(3):  # a leader that cannot write refuses each FIN
        bench = Bench(handled, after=bench)
        bench.read(1)
        assert bench.turn() == fin(1)
        assert bench.connection.finished == 1
        bench.clock.advance(5.0)
        bench.connection.close(NotWritableError("E_FAILED_ON_NOT_WRITABLE"))
    assert handled.numbers == []


class Handled:
    """Handler that records the messages that a Reader would pass to its handler."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, message: Message) -> None:
        if not message.has_responded:
            self.numbers.append(int(message.id))
            message.finish()


def test_a_finished_message_is_handled_again_if_nsqd_had_executed_its_fin() -> None:
    handled = Handled()
    Bench(handled, after=lost_after_finishing(1, 11.0)).read(1)  # the connection lived for 10 s after the FIN
    assert handled.numbers == [1]
    bench = Bench(handled, after=lost_after_finishing(1))
    bench.clock.advance(60.0)  # the next connection lived on without a delivery
    bench.read(1)
    assert handled.numbers == [1, 1]
    bench = Bench(handled, after=lost_after_finishing(1))
    bench.read(2)  # nsqd delivers this one only after the FIN of 1
    bench.read(1)
    assert handled.numbers == [1, 1, 2, 1]


def test_a_finished_message_is_handled_again_if_its_body_differs_or_after_five_minutes() -> None:
    handled = Handled()
    bench = Bench(handled, after=lost_after_finishing(1))
    frame = struct.pack(">iIqH16s", 31, 2, 0, 1, b"%016d" % 1) + b"y"
    bench.connection._take_messages(frame)
    assert handled.numbers == [1]
    lost = lost_after_finishing(2)
    lost.clock.advance(301.0)
    Bench(handled, after=lost).read(2)
    assert handled.numbers == [1, 2]


def test_the_same_connection_delivers_a_finished_message_to_a_handler_again() -> None:
    handled = Handled()
    bench = Bench(handled)
    bench.read(1)
    bench.turn()
    bench.read(1)
    assert handled.numbers == [1, 1]


def test_a_requeued_message_of_a_lost_connection_is_handled_again() -> None:
    bench = Bench(lambda message: message.requeue(0.0))
    bench.read(1)
    bench.turn()
    bench.connection.close(ConnectionLost("nsqd:4150", "EOF"))
    handled = Handled()
    Bench(handled, after=bench).read(1)
    assert handled.numbers == [1]
