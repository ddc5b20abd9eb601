"""What a Reader's connection writes, and when it schedules a callback.  The tests use no network and do not wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.message import Message
from gnsq_lite.net.connection import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.policy.delivery import SPAN
from gnsq_lite.wire import commands
from gnsq_lite.wire.identify import Negotiated
from tests.fakes import FakeClock


class Timer:
    """One timer of the loop."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds, self.act, self.runs = seconds, act, True

    @property
    def active(self) -> bool:
        return self.runs

    def stop(self) -> None:
        self.runs = False

    def close(self) -> None:
        pass


class Bench:
    """A connection in a loop that runs only in turn().  This object is its stream, flow control and owner."""

    closed = error = None
    unsent = 0
    watches = False

    def __init__(self) -> None:
        self.clock, self.due = FakeClock(), list[Callable[[], None]]()
        self.timers: list[Timer] = []
        self.sent: list[bytes] = []
        self.told: list[int] = []
        self.failures: list[int] = []
        self.flow = self
        loop: Any = SimpleNamespace(timer=self.timer, call_soon=self.due.append, is_shared=False)
        loop.guard = contextlib.nullcontext()
        target = Target(endpoint=Endpoint("nsqd", 4150), topic="t", channel="ch")
        owner: Any = self
        self.connection = Subscribed(loop, target, ConnectionOptions(), owner, self.clock, is_prompt=True)
        self.connection._stream = owner
        self.connection._adopt(Negotiated(negotiated=True))
        self.connection.opened_at = self.clock.now()
        self.held: list[Message] = []
        self.connection.set_ready(10)
        self.turn()

    def timer(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def running(self) -> list[float]:
        return [timer.seconds for timer in self.timers if timer.runs]

    def turn(self) -> bytes:
        """Run the scheduled callbacks.  Return the bytes that they wrote."""
        before = len(self.sent)
        while self.due:
            self.due.pop(0)()
        return b"".join(self.sent[before:])

    def message(self) -> Message:
        self.connection.read_at = self.clock.now()
        wall_ns = int(self.clock.wall() * 1e9)
        message = Message(self.connection, wall_ns, 1, b"%016d" % len(self.held), b"x")
        self.connection._on_messages([message])
        return message

    # -- the stream, the flow control and the owner

    def requeue_delay(self, message: Message, asked: float) -> float:
        return asked

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def received(self, connection: Any, count: int) -> None:
        self.told.append(count)

    def answered(self, connection: Any, count: int, *, success: bool) -> None:
        self.told.append(-count)

    def handle(self, messages: list[Message]) -> None:
        self.held += messages

    def successes(self, connection: Any) -> int:
        return self.connection.succeeded

    def failed(self, connection: Any, successes: int) -> None:
        self.failures.append(successes)


@pytest.mark.rule("RDY-1")
def test_a_message_answered_at_once_schedules_one_flush_and_no_timer() -> None:
    bench = Bench()
    for _ in range(5):
        bench.clock.advance(0.05)
        message = bench.message()
        message.finish()
        assert len(bench.due) == 1
        assert bench.turn() == b"FIN " + message.id + b"\n"
        assert bench.running() == []


@pytest.mark.rule("RDY-1")
def test_rdy_changes_with_the_answers_of_fast_handlers_and_with_the_reads_of_slow_ones() -> None:
    bench = Bench()
    bench.clock.advance(0.05)
    first = bench.message()
    assert bench.due == []
    assert bench.running() == [SPAN]
    bench.clock.advance(SPAN)
    bench.timers[-1].act()  # the handler is slow
    assert bench.turn() == commands.ready(2)
    bench.message()
    assert len(bench.due) == 1
    assert bench.turn() == commands.ready(3)
    first.finish()
    assert bench.turn() == commands.ready(2) + commands.finish(first.id)


@pytest.mark.rule("RDY-4")
def test_messages_are_reported_while_flow_control_watches_or_if_they_exceed_the_share() -> None:
    bench = Bench()
    bench.connection.set_ready(2)
    messages = [bench.message() for _ in range(3)]
    assert bench.told == [1]
    for message in messages:
        message.finish()
        bench.turn()
    assert bench.told == [1, -1]
    bench.watches = True
    bench.message().finish()
    bench.turn()
    assert bench.told == [1, -1, 1, -1]


def test_a_new_share_counts_a_message_in_flight() -> None:
    bench = Bench()
    bench.clock.advance(0.05)
    bench.message()
    bench.connection.set_ready(1)
    assert bench.turn() == b""
    assert bench.running() == []  # with a share of 1 there is only one RDY


def frame(kind: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + kind.to_bytes(4, "big") + body


def message_frame(bench: Bench, id: int = 0) -> bytes:
    head = int(bench.clock.wall() * 1e9).to_bytes(8, "big") + (1).to_bytes(2, "big")
    return frame(2, head + b"%016d" % id + b"body")


def test_the_hub_handles_a_read_of_messages_and_leaves_other_reads_to_the_greenlet() -> None:
    bench = Bench()
    whole = message_frame(bench)
    for other in (
        b"",
        whole[:-1],
        whole + whole[:3],
        frame(0, b"_heartbeat_"),
        whole + frame(0, b"_heartbeat_"),
        b"HTTP",
    ):
        assert not bench.connection._take_messages(other)
        assert (bench.held, bench.connection.received) == ([], 0)
    bench.clock.advance(3.0)
    assert bench.connection._take_messages(whole + message_frame(bench, 1))
    assert [message.id for message in bench.held] == [b"%016d" % n for n in (0, 1)]
    assert bench.connection.read_at == bench.clock.now()  # nsqd is alive
    assert bench.connection.in_flight == 2


def test_at_full_speed_the_hub_leaves_reads_to_the_greenlet() -> None:
    bench = Bench()
    delivery = bench.connection._delivery
    assert delivery is not None
    delivery.is_full = True
    assert not bench.connection._take_messages(message_frame(bench))


@pytest.mark.rule("BACK-1")
def test_a_failure_is_reported_with_all_earlier_successes_including_queued_fins() -> None:
    bench = Bench()
    for _ in range(3):
        bench.message().finish()
    bench.message().requeue(0.0)
    bench.message().finish()  # before the loop handles the failure
    bench.turn()
    bench.message().requeue(0.0)
    bench.turn()
    bench.message().requeue(0.0, backoff=False)
    bench.turn()
    assert bench.failures == [3, 4]
