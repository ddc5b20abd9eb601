"""The Reader around one connection: its loop, stream, flow control and owner are fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.consume.unconfirmed import Unconfirmed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.message import Message
from gnsq_lite.net.connection import Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.policy.ordered import OrderedPartition
from gnsq_lite.wire.identify import Negotiated
from tests.unit.fake_loop import FakeLoop


class FakeReader:
    """The loop, stream, flow control and owner of a subscribed connection.

    *handle* is called with each message; *ordered* makes the connection that of a partition, whose previous
    connection is that of *after*.  *threads* is the pool whose threads may read.
    """

    closed: Any = None
    error: Any = None
    stuck_since: Any = None
    unsent = 0
    loop_reads, has_ended_reads = True, False

    def __init__(
        self,
        handle: Callable[[Message], object] = lambda message: None,
        *,
        ordered: bool = False,
        reads_in_hub: bool = True,
        writes_fins: bool = False,
        tls: object = None,
        after: FakeReader | None = None,
        threads: Any = None,
    ) -> None:
        self.tls, self.watches, self.flow, self._handle = tls, ordered, self, handle
        self.loop = FakeLoop(after.clock if after else None)
        self.clock = self.loop.clock
        self.unconfirmed = after.unconfirmed if after else Unconfirmed(self.clock)
        self.written, self.sent_by_threads = list[bytes](), list[bytes]()
        self.to_threads = list[Any]()
        self.handled = list[Message]()
        self.reported, self.failures, self.lost = list[int](), list[int](), 0
        loop: Any = self.loop
        owner: Any = self
        target = Target(endpoint=Endpoint("nsqd", 4150, 3 if ordered else None), topic="t", channel="ch")
        args = loop, target, ConnectionOptions(), owner, self.clock
        self.connection: Any
        if ordered:
            partition = OrderedPartition(self.clock)
            self.connection = OrderedConnection(partition, self.unconfirmed, threads, *args, reads_in_hub=reads_in_hub)
        else:
            self.connection = SubscribedConnection(*args, is_prompt=True, writes_fins=writes_fins)
        self.connection._stream = owner
        self.connection._adopt(Negotiated(negotiated=True, msg_timeout=60.0))
        self.connection.opened_at = self.clock.now()

    def turn(self) -> bytes:
        """Run the scheduled callbacks.  Return the bytes written since the last turn."""
        self.loop.turn()
        written, self.written = b"".join(self.written), []
        return written

    def receive(self) -> Message:
        """Pass a message to the connection, as the reading greenlet does."""
        self.connection.read_at = self.clock.now()
        message = Message(self.connection, int(self.clock.wall() * 1e9), 1, b"%016d" % len(self.handled), b"x")
        self.connection._on_messages([message])
        return message

    def assert_nothing_is_in_flight(self) -> None:
        assert self.connection.in_flight == sum(self.reported) == 0
        assert self.connection.unanswered() == []

    # -- the stream

    def read_in_loop(self) -> None:
        self.loop_reads = True

    def let_threads_read(self) -> bool:
        self.loop_reads = False
        return True

    def exchange(self, data: bytes, counts: list[int]) -> bytes:
        """Take a FIN of the thread that has the lease, and return the next item of ``to_threads``."""
        self.sent_by_threads.append(data)
        counts.append(len(data))
        given = self.to_threads.pop(0)
        if isinstance(given, bytes):
            return given
        raise given

    def take_read(self) -> None: ...

    def end_reads(self) -> None:
        self.has_ended_reads = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def send(self, data: bytes, flags: int) -> int:
        """Take what an answering thread, or the hub, sends beside the loop's writes."""
        self.sent_by_threads.append(data)
        self.written.append(data)
        return len(data)

    def sent_beside_loop(self, data: bytes, sent: int) -> None:
        assert sent == len(data)

    def close(self, reason: Any) -> None:
        self.closed = reason

    # -- the flow control

    def received(self, connection: Any, count: int) -> None:
        self.reported.append(count)

    def answered(self, connection: Any, count: int, *, success: bool) -> None:
        self.reported.append(-count)

    def rest(self, connection: Any, resting: bool) -> None: ...

    def successes(self, connection: Any) -> int:
        succeeded: int = connection.succeeded
        return succeeded

    def failed(self, connection: Any, successes: int) -> None:
        self.failures.append(successes)

    # -- the owner

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        return asked or 0.0

    def handle(self, messages: list[Message]) -> None:
        for message in messages:
            self.handled.append(message)
            self._handle(message)

    def on_closed(self, connection: Any) -> None: ...

    def on_answers_lost(self, count: int) -> None:
        self.lost += count
