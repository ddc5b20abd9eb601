"""Clients without connections, for the broker's queues and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.broker.channels import Channel
from gnsq_lite.broker.faults import FaultState
from gnsq_lite.broker.messages import StoredMessage, Subscriber
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.broker.protocol import ProtocolV2
from gnsq_lite.broker.topics import Topics
from tests.fakes import FakeClock


class FakeSubscriber(Subscriber):
    """A client that keeps what it gets."""

    def __init__(self, client_id: int = 1, ready: int = 0, msg_timeout: float = 60.0) -> None:
        super().__init__(client_id, msg_timeout)
        self.ready_count = ready
        self.got: list[StoredMessage] = []
        self.disconnected = False

    def deliver(self, messages: list[StoredMessage]) -> None:
        self.got += messages

    def disconnect(self) -> None:
        self.disconnected = True

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


class Rig:
    """The topics of one nsqd and a clock that is moved by hand."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.topics = Topics(BrokerOptions(**options), self.clock)

    def publish(self, name: str, *bodies: bytes, defer: float = 0.0) -> None:
        self.topics.publish(self.topics.get(name), bodies, defer)
        self.pump()

    def subscribe(self, name: str, channel: str, consumer: Subscriber) -> Channel:
        found = self.topics.get_channel(self.topics.get(name), channel)
        found.add_client(consumer)
        self.pump()
        return found

    def pump(self) -> None:
        self.topics.shared.pump(self.clock.now())

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.topics.scan()
        self.pump()


class FakeTimer:
    """A timer that fires when :meth:`FakeServer.advance` reaches it."""

    def __init__(self, due: float, period: float | None, callback: Callable[[], None]) -> None:
        self.due, self.period, self.callback = due, period, callback
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


class FakeLink:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.remote_address = "192.0.2.1:5000"
        self.tls_info: dict[str, Any] = {}
        self.write_timeout = 0.0
        self.data = b""
        self.backlog = 0
        self.closed = False
        self.waits = 0
        self.upgrades: list[Any] = []

    def send(self, data: bytes, delay: float = 0.0) -> None:
        self.data += data

    def unsent(self) -> int:
        return self.backlog

    def start_tls(self, context: Any) -> None:
        self.upgrades.append("tls")

    def start_compression(self, kind: str, level: int, received: bytes) -> None:
        self.upgrades.append((kind, level, received))

    def wait_until_drained(self) -> None:
        self.waits += 1
        self.backlog = 0

    def close(self, *, reset: bool = False) -> None:
        self.closed = True

    def frames(self) -> list[tuple[int, bytes]]:
        """Return the frames sent since the last call."""
        found, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 4], "big")
            found.append((int.from_bytes(self.data[at + 4 : at + 8], "big"), self.data[at + 8 : at + 4 + size]))
            at += 4 + size
        assert at == len(self.data)
        self.data = b""
        return found


class FakeServer(Rig):
    """An nsqd without sockets; time moves with :meth:`advance`."""

    authorizer: Any = None

    def __init__(self, *, tls: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.options = self.topics.shared.options
        self.faults = FaultState()
        self.tls_context: Any = object() if tls else None
        self._timers: list[FakeTimer] = []
        self._flushes: list[Any] = []
        self._clients = 0

    def connect(self) -> tuple[ProtocolV2, FakeLink]:
        """Return a new session and its link."""
        link: Any = FakeLink()
        self._clients += 1
        return ProtocolV2(self, link, self._clients, self.clock.wall()), link

    def talk(self, session: ProtocolV2, *data: bytes) -> list[tuple[int, bytes]]:
        """Give *data* to the session; return the frames it answers with in this turn."""
        session.receive(b"".join(data))
        self.end_turn()
        link: Any = session.link
        frames: list[tuple[int, bytes]] = link.frames()
        return frames

    def end_turn(self) -> None:
        """What the loop does after all reads."""
        for _ in range(3):
            flushes, self._flushes = self._flushes, []
            for session in flushes:
                session.flush()
            self.pump()

    def advance(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        while True:
            due = sorted((t for t in self._timers if not t.stopped and t.due <= end), key=lambda t: t.due)
            if not due:
                break
            timer = due[0]
            self.clock.advance(max(0.0, timer.due - self.clock.now()))
            if timer.period is None:
                timer.stopped = True
            else:
                timer.due += timer.period
            timer.callback()
            self.end_turn()
        self._timers = [t for t in self._timers if not t.stopped]
        self.clock.advance(max(0.0, end - self.clock.now()))
        self.topics.scan()
        self.end_turn()

    def flush_soon(self, session: Any) -> None:
        self._flushes.append(session)

    def after(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        self._timers.append(FakeTimer(self.clock.now() + seconds, None, callback))
        return self._timers[-1]

    def every(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        self._timers.append(FakeTimer(self.clock.now() + seconds, seconds, callback))
        return self._timers[-1]

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def ended(self, session: Any) -> None:
        """Nothing is counted here."""
