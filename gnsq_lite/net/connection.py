"""A connection to one nsqd: handshake, frames, writes, heartbeats (CONN-2, HB-1).

Reading costs one pass over what a read brought; all that is queued in a turn of the loop is one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, MessageFactory
from gnsq_lite.errors import (
    ConnectionLost,
    HandshakeTimeout,
    HeartbeatTimeout,
    NSQConnectionError,
    NsqdError,
    NSQError,
    ProtocolError,
    error_for,
)
from gnsq_lite.message import Message
from gnsq_lite.net.blocking_connection import BlockingConnection
from gnsq_lite.net.dialing import dial
from gnsq_lite.net.handshaking import HANDSHAKE_BYTES, shake_hands
from gnsq_lite.net.loop import SLICE, Loop, let_io, time_limit
from gnsq_lite.net.stream import Stream
from gnsq_lite.net.user_hooks import Complaints
from gnsq_lite.options import Address, ConnectionOptions, format_address
from gnsq_lite.stats import ConnectionStats
from gnsq_lite.wire import commands
from gnsq_lite.wire.constants import CLOSE_WAIT, FRAME_ERROR, HEARTBEAT
from gnsq_lite.wire.frames import Frame, FrameDecoder
from gnsq_lite.wire.identify import Negotiated

log = logging.getLogger("gnsq_lite.net")

#: Frames, messages apart, between two looks at the clock.
_FRAMES_AT_ONCE = 256
#: Bytes that wait for nsqd to take them, before it gets no more answers to heartbeats and a Reader reads no more.
MOST_UNSENT = 4 * 1024 * 1024


class Owner(Protocol):
    """The owner of a connection, called with the frames that are no messages.  In the loop's thread; must not wait."""

    def on_response(self, connection: Any, body: bytes) -> None:
        """nsqd's next answer."""

    def on_error_frame(self, connection: Any, error: NsqdError) -> None:
        """An error that leaves the connection open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a connection is for: an nsqd, and for a Reader what to subscribe to."""

    endpoint: Endpoint
    topic: str = ""
    channel: str = ""
    subscribe: bytes | None = None
    #: Returns how messages are made, once what was negotiated is known.
    choose_message: Callable[[Any], MessageFactory] | None = None
    identify_extra: Mapping[str, Any] | None = None
    #: Called with nsqd's version and address; raises if nsqd is not to be used.
    check_server: Callable[[str, str], None] | None = None
    #: Where to connect to in truth, when an address map says other than the endpoint.
    connect_to: Address | None = None


class Connection:
    """``open`` and ``run`` are called, in turn, by the one greenlet that owns it; ``send`` may be in any thread."""

    #: Errors after which nsqd, which closes a consumer's connection, goes on to read this one.
    outlives: tuple[type[NsqdError], ...] = ()

    def __init__(self, loop: Loop, target: Target, options: ConnectionOptions, owner: Owner, clock: Clock) -> None:
        self.loop, self.target, self.options, self.owner, self.clock = loop, target, options, owner, clock
        self.endpoint = target.endpoint
        self.address = format_address(target.endpoint.address)
        self.negotiated: Negotiated | None = None
        self.auth_reply: Any = None
        self.read_at = clock.now()
        self.opened_at: float | None = None
        self.close_waited = False
        self._stream: Stream | None = None
        self._codec: Any = None
        self._out: list[bytes] = []
        self._due = False  # a flush is on its way
        self._must_wait = False  # what the last read brought is more than can be taken
        self._turn_began = 0.0
        limit = min(options.max_frame_size, HANDSHAKE_BYTES)
        self._decoder = FrameDecoder[Message](limit, Message, self, at_once=_FRAMES_AT_ONCE)
        self.complaints = Complaints(clock)

    # -- opening (CONN-1, CONN-5)

    def open(self) -> None:
        """Connect and shake hands, up to the OK of SUB; waits.

        Raises:
            ConnectError, HandshakeTimeout, TLSError, NsqdError, ProtocolError: closed again; the text names the nsqd.
        """
        host, port = self.target.connect_to or self.endpoint.address
        sock = dial(host, port, self.options.connect_timeout)
        self._stream = stream = Stream(self.loop, sock, self.address)
        seconds = self.options.handshake_timeout
        why = f"no end of the handshake within {seconds:g} s: is this nsqd's TCP port?"
        try:
            with time_limit(seconds, HandshakeTimeout(self.address, why)):
                self._adopt(self._shake_hands(stream, host))
        except NSQError as error:
            self._close_for(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "given up"))
            raise
        self.opened_at = self.clock.now()

    def _shake_hands(self, stream: Stream, host: str) -> Negotiated | None:
        target = self.target
        opened = shake_hands(
            stream,
            self._decoder,
            self.options,
            host,
            self.address,
            identify_extra=target.identify_extra,
            check_server=target.check_server,
            subscribe=target.subscribe,
        )
        self._codec, self.auth_reply = opened.codec, opened.auth_reply
        return opened.negotiated

    def _adopt(self, negotiated: Negotiated | None) -> None:
        self.negotiated = negotiated
        self._decoder.limit = self.options.max_frame_size

    # -- reading

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        stream = self._stream
        if stream is None:
            raise ConnectionLost(self.address, "not open")
        try:
            self._deliver(self._decoder.take_pending())
            while True:
                data = stream.read()
                self.read_at = self._turn_began = self.clock.now()
                if self._codec is None:
                    self._deliver(data)
                else:
                    for chunk in self._codec.decompress(data):
                        self._deliver(chunk)
                        self._give_way()
        except NSQError as error:
            self._close_for(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "closed by this client"))
            raise

    def _close_for(self, error: NSQError) -> None:
        """Close because of *error*, which names the nsqd from now on."""
        if isinstance(error, ProtocolError):
            error.address = self.address
        self.close(error)

    def _deliver(self, data: bytes) -> None:
        decoder = self._decoder
        while True:
            messages, frames = decoder.feed(data)
            if messages:
                self._on_messages(messages)
            for frame in frames:
                self._on_frame(frame)
            if decoder.error is not None:
                raise decoder.error
            if self._must_wait:
                self._must_wait = False
                self._wait_for_room()
            if not decoder.more:
                return
            data = b""
            self._give_way()

    def _give_way(self) -> None:
        """Let the loop do its other work where this read takes long; raise what closed the connection meanwhile."""
        if self.clock.now() - self._turn_began > SLICE:
            let_io()
            self._go_on()

    def _go_on(self) -> None:
        """Read on, after a wait."""
        self._turn_began = self.clock.now()
        if self._stream is not None and self._stream.closed is not None:
            raise self._stream.closed

    def _on_messages(self, messages: list[Message]) -> None:
        raise ProtocolError("a message came to a connection that has not subscribed")

    def _wait_for_room(self) -> None:
        """Wait until more can be taken."""

    def _on_frame(self, frame: Frame) -> None:
        body = frame.body
        if frame.kind == FRAME_ERROR:
            error = error_for(body, self.address)
            if error.closes_connection and not isinstance(error, self.outlives):
                raise error
            self.owner.on_error_frame(self, error)
        elif body == HEARTBEAT:
            # One answers all that came meanwhile: any byte is a sign of life.
            if not (self._out and self._out[-1] is commands.NOP) and self.unsent() < MOST_UNSENT:
                self.send(commands.NOP)
        else:
            if body == CLOSE_WAIT:
                self.close_waited = True
            self.owner.on_response(self, body)

    def read_at_least(self, size: int) -> None:
        """Wait for *size* bytes, or a moment, before the next read; for any bytes again with 1, or where compressed."""
        if self._stream is not None and self._codec is None:
            self._stream.read_at_least(size)

    # -- writing

    def send(self, data: bytes) -> None:
        """Queue *data*; all that is queued in one turn of the loop is one write.  From any thread; never waits."""
        self._out.append(data)
        if not self._due:
            self._due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._emit(self._take(self._out))

    @staticmethod
    def _take(queue: list[bytes]) -> bytes:
        """Empty *queue*.  Other threads may append meanwhile: take what is there now, by its number."""
        count = len(queue)
        data = b"".join(queue[:count])
        del queue[:count]
        return data

    def _emit(self, data: bytes) -> None:
        stream = self._stream
        if stream is not None and stream.closed is None and data:
            stream.write(data if self._codec is None else self._codec.compress(data))

    # -- watching

    def check(self, now: float) -> None:
        """Close the connection when nsqd has been silent, or takes no bytes, for too long (HB-2).

        Called about once a second, in the loop's thread.
        """
        stream = self._stream
        if stream is None or stream.closed is not None or self.opened_at is None:
            return
        self.complaints.log_due(now)
        silent = now - max(self.read_at, self.opened_at)
        if silent > 2 * self.options.heartbeat_interval:
            why = f"no byte from nsqd for {silent:.1f} s, two heartbeat intervals"
            self.close(HeartbeatTimeout(self.address, why))
        elif stream.stuck_since is not None and now - stream.stuck_since > self.options.write_timeout:
            why = f"nsqd has taken no bytes for {self.options.write_timeout:g} s"
            self.close(ConnectionLost(self.address, why))

    # -- the end

    def is_open(self) -> bool:
        """Whether the handshake is done and the connection not closed."""
        return self.opened_at is not None and self._stream is not None and self._stream.closed is None

    def close(self, reason: NSQError) -> None:
        """Close at once; the reading greenlet gets *reason*.  In the loop's thread; again: nothing."""
        stream = self._stream
        if stream is not None:
            if not isinstance(reason, NSQConnectionError):
                reason = ConnectionLost(self.address, str(reason))
            stream.close(reason)
        self.complaints.log_due()

    def shut_down(self) -> None:
        """Send what is queued, then end of stream: nsqd reads all of it and closes."""
        self._flush()
        if self._stream is not None:
            self._stream.shut_down()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        if self._stream is not None:
            self._stream.abandon()

    def unsent(self) -> int:
        """Bytes nsqd has not taken yet."""
        return self._stream.unsent if self._stream is not None else 0

    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent."""
        return (self._stream.bytes_in, self._stream.bytes_out) if self._stream is not None else (0, 0)

    def __repr__(self) -> str:
        state = "open" if self.is_open() else "closed"
        return f"<{type(self).__name__} {self.endpoint} {state}>"


def connection_stats(connection: Connection | BlockingConnection, now: float, **counts: int) -> ConnectionStats:
    """Return the state of one connection; *counts* are those of its messages, by the names of ConnectionStats."""
    received, sent = connection.traffic()
    return ConnectionStats(
        address=connection.address,
        partition=connection.endpoint.partition,
        open_for=0.0 if connection.opened_at is None else now - connection.opened_at,
        **counts,
        bytes_in=received,
        bytes_out=sent,
        last_read_ago=now - connection.read_at,
        negotiated=connection.negotiated,
        auth=connection.auth_reply,
    )
