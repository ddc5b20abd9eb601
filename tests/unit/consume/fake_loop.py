"""A subscribed connection in a loop that runs only when a test says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.message import Message
from gnsq_lite.net.connection import Target
from gnsq_lite.options import ConnectionOptions
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

    def __init__(self, *, writes_fins: bool = False, tls: object = None) -> None:
        self.tls = tls
        self.clock, self.due = FakeClock(), list[Callable[[], None]]()
        self.timers: list[Timer] = []
        self.sent: list[bytes] = []
        self.sent_here: list[bytes] = []
        self.told: list[int] = []
        self.failures: list[int] = []
        self.flow = self
        loop: Any = SimpleNamespace(timer=self.timer, call_soon=self.due.append, is_shared=False)
        loop.guard = contextlib.nullcontext()
        target = Target(endpoint=Endpoint("nsqd", 4150), topic="t", channel="ch")
        owner: Any = self
        self.connection = Subscribed(
            loop, target, ConnectionOptions(), owner, self.clock, is_prompt=True, writes_fins=writes_fins
        )
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

    def send(self, data: bytes, flags: int) -> int:
        self.sent_here.append(data)
        return len(data)

    def sent_beside_loop(self, data: bytes, sent: int) -> None:
        assert sent == len(data)

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
