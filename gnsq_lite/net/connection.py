"""A connection to one nsqd: handshake, frames, writes, heartbeats (CONN-1, CONN-2, HB-1).

Reading costs one pass over what a read brought; all that is queued in a turn of the loop is one write.  Connections of
threads that block are in :mod:`gnsq_lite.net.blocking_connection`; the handshake is the same.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from gnsq_lite.net.dialing import dial
from gnsq_lite.net.loop import SLICE, Loop, let_io, time_limit
from gnsq_lite.net.stream import ByteStream, Stream
from gnsq_lite.options import Address, ConnectionOptions, format_address
from gnsq_lite.stats import ConnectionStats
from gnsq_lite.wire import commands
from gnsq_lite.wire.compress import make_codec
from gnsq_lite.wire.constants import CLOSE_WAIT, FRAME_ERROR, HEARTBEAT
from gnsq_lite.wire.frames import Frame, FrameDecoder
from gnsq_lite.wire.handshake import Done, Handshake, Send, StartCompression, StartTLS
from gnsq_lite.wire.identify import Negotiated, build_identify

log = logging.getLogger("gnsq_lite.net")

#: Largest frame of a handshake, and most bytes that one read of it decompresses to.
_HANDSHAKE_BYTES = 1024 * 1024
#: Most frames of a handshake; without heartbeats nsqd sends five.
_HANDSHAKE_FRAMES = 1000
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
    """The nsqd of a connection, and for a Reader its subscription."""

    endpoint: Endpoint
    topic: str = ""
    channel: str = ""
    subscribe: bytes | None = None
    #: Returns how messages are made, once what was negotiated is known.
    choose_message: Callable[[Any], MessageFactory] | None = None
    identify_extra: Mapping[str, Any] | None = None
    #: Called with nsqd's version and address; raises if nsqd is not to be used.
    check_server: Callable[[str, str], None] | None = None
    #: The address to connect to, where an address map replaces that of the endpoint.
    connect_to: Address | None = None


class BaseConnection:
    """The handshake of a connection, and what it settles (CONN-1).

    *of_messages* is the connection of its messages; None where there are none, and a reference to itself would keep a
    connection that an exception leaves behind.
    """

    def __init__(
        self, target: Target, options: ConnectionOptions, clock: Clock, make_message: Any, of_messages: Any = None
    ) -> None:
        self.target, self.options, self.clock = target, options, clock
        self.endpoint = target.endpoint
        self.address = format_address(target.endpoint.address)
        self.negotiated: Negotiated | None = None
        self.auth_reply: Any = None
        self.opened_at: float | None = None
        #: When bytes of nsqd were read last; in a blocking connection when its latest command began.
        self.read_at = clock.now()
        self._stream: Any = None
        self._codec: Any = None
        limit = min(options.max_frame_size, _HANDSHAKE_BYTES)
        self._decoder = FrameDecoder[Message](limit, make_message, of_messages, at_once=_FRAMES_AT_ONCE)

    def _shake_hands(self, stream: ByteStream, host: str, *, heartbeats: bool = True) -> None:
        """Shake hands, up to the OK of SUB; the caller bounds the time.

        Args:
            host: The host to verify with TLS.
            heartbeats: False asks nsqd for none, which it grants to producers.
        Raises:
            NSQConnectionError, NsqdError, ProtocolError: the handshake has failed; the text names the nsqd.
        """
        options, target, decoder = self.options, self.target, self._decoder
        if target.identify_extra:
            options = replace(options, extra_identify={**options.extra_identify, **target.identify_extra})
        identify = build_identify(options, hostname_default=socket.gethostname(), heartbeats=heartbeats)
        handshake = Handshake(
            options, self.address, identify=identify, subscribe=target.subscribe, check_server=target.check_server
        )
        stream.write(handshake.start())
        data = b""  # read and not decoded yet
        try:
            for _ in range(_HANDSHAKE_FRAMES):
                while (frame := decoder.feed_one(data)) is None:
                    data = self._decompress(stream.read())
                step = handshake.receive(frame)
                data = b""
                if isinstance(step, Send):
                    stream.write(step.data if self._codec is None else self._codec.compress(step.data))
                elif isinstance(step, StartTLS):
                    data = stream.start_tls(options.tls, host, decoder.take_pending())  # type: ignore[arg-type]
                elif isinstance(step, StartCompression):
                    self._codec = make_codec(step.algorithm, step.level)
                    data = self._decompress(decoder.take_pending())
                elif isinstance(step, Done):
                    break
            else:
                raise ProtocolError(f"the handshake did not end within {_HANDSHAKE_FRAMES} frames")
        except ProtocolError as error:
            error.address = self.address
            raise
        for warning in handshake.warnings:
            log.warning("%s: %s", self.address, warning)
        self.negotiated, self.auth_reply = handshake.negotiated, handshake.auth_reply
        decoder.limit = self.options.max_frame_size

    def _decompress(self, data: bytes) -> bytes:
        """Return the plain bytes of a read of the handshake.  Raises ProtocolError for a bomb."""
        if self._codec is None:
            return data
        plain = b""
        for piece in self._codec.decompress(data):
            plain += piece
            if len(plain) > _HANDSHAKE_BYTES:
                raise ProtocolError(f"a read of the handshake decompresses to more than {_HANDSHAKE_BYTES} bytes")
        return plain

    def _handshake_timeout(self, seconds: float) -> HandshakeTimeout:
        why = f"no end of the handshake within {seconds:.3g} s: is this nsqd's TCP port?"
        return HandshakeTimeout(self.address, why)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes received and sent."""
        return (self._stream.bytes_in, self._stream.bytes_out) if self._stream is not None else (0, 0)


class Connection(BaseConnection):
    """``open`` and ``run`` are called, in turn, by the one greenlet that owns it; ``send`` may be in any thread."""

    #: Errors after which nsqd, which closes a consumer's connection, goes on to read this one.
    outlives: tuple[type[NsqdError], ...] = ()
    _stream: Stream | None

    def __init__(self, loop: Loop, target: Target, options: ConnectionOptions, owner: Owner, clock: Clock) -> None:
        super().__init__(target, options, clock, Message, self)
        self.loop, self.owner = loop, owner
        self.close_waited = False
        self._out: list[bytes] = []
        self._due = False  # a flush is on its way
        self._must_wait = False  # what the last read brought is more than can be taken
        self._turn_began = 0.0

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
        try:
            with time_limit(seconds, self._handshake_timeout(seconds)):
                self._shake_hands(stream, host)
                self._adopt(self.negotiated)
        except NSQError as error:
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "given up"))
            raise
        self.opened_at = self.clock.now()

    def _adopt(self, negotiated: Negotiated | None) -> None:
        """Keep what was negotiated."""

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
            if isinstance(error, ProtocolError):
                error.address = self.address
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "closed by this client"))
            raise

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
        """Give other greenlets a turn if this read takes long; raise the error that closed the connection meanwhile."""
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
        silent = now - max(self.read_at, self.opened_at)
        if silent > 2 * self.options.heartbeat_interval:
            why = f"no byte from nsqd for {silent:.1f} s, two heartbeat intervals"
            self.close(HeartbeatTimeout(self.address, why))
        elif stream.stuck_since is not None and now - stream.stuck_since > self.options.write_timeout:
            why = f"nsqd has taken no bytes for {self.options.write_timeout:g} s"
            self.close(ConnectionLost(self.address, why))

    # -- the end

    def is_open(self) -> bool:
        """Return whether the handshake is done and the connection is not closed."""
        return self.opened_at is not None and self._stream is not None and self._stream.closed is None

    def close(self, reason: NSQError) -> None:
        """Close at once; the reading greenlet raises *reason*.  In the loop's thread; a second call does nothing."""
        stream = self._stream
        if stream is not None:
            if not isinstance(reason, NSQConnectionError):
                reason = ConnectionLost(self.address, str(reason))
            stream.close(reason)

    def shut_down(self) -> None:
        """Send what is queued, then the end of the stream: nsqd reads all of it and closes."""
        self._flush()
        if self._stream is not None:
            self._stream.shut_down()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        if self._stream is not None:
            self._stream.abandon()

    def unsent(self) -> int:
        """Return how many bytes nsqd has not taken yet."""
        return self._stream.unsent if self._stream is not None else 0

    def __repr__(self) -> str:
        state = "open" if self.is_open() else "closed"
        return f"<{type(self).__name__} {self.endpoint} {state}>"


def connection_stats(connection: BaseConnection, now: float, **counts: int) -> ConnectionStats:
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
