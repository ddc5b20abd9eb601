"""A connection to one nsqd: handshake, frames, writes, heartbeats (CONN-1, CONN-2, HB-1).

One write sends all data that was queued in one iteration of the loop.  The connections of blocking threads are in
:mod:`gnsq_lite.net.blocking_connection`.  Both kinds have the same handshake.
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
    AuthFirstError,
    ConnectionLost,
    HandshakeTimeout,
    HeartbeatTimeout,
    NSQConnectionError,
    NsqdError,
    NSQError,
    ProtocolError,
    TLSNotGranted,
    error_for,
)
from gnsq_lite.message import Message
from gnsq_lite.net.dialing import dial
from gnsq_lite.net.loop import SLICE, Loop, let_io, time_limit
from gnsq_lite.net.stream import ByteStream, Stream
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import Address, Compression, ConnectionOptions, format_address
from gnsq_lite.stats import ConnectionStats
from gnsq_lite.wire import commands
from gnsq_lite.wire.compress import make_codec
from gnsq_lite.wire.constants import CLOSE_WAIT, FRAME_ERROR, FRAME_RESPONSE, HEARTBEAT, MAGIC_V2, OK
from gnsq_lite.wire.frames import Frame, FrameDecoder
from gnsq_lite.wire.identify import Negotiated, build_identify, not_granted, parse_auth_reply, parse_identify_reply

log = logging.getLogger("gnsq_lite.net")

#: Maximum bytes of one handshake frame, and of one decompressed read in the handshake.
_HANDSHAKE_BYTES = 1024 * 1024
#: Number of unsent bytes at which the connection stops answering heartbeats.
MOST_UNSENT = 4 * 1024 * 1024


class Owner(Protocol):
    """Handles responses and error frames in the loop's thread.  The methods must not block."""

    def on_response(self, connection: Any, body: bytes) -> None:
        """Handle a response of nsqd, except a heartbeat."""

    def on_error_frame(self, connection: Any, error: NsqdError) -> None:
        """Handle an error frame after which the connection stays open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The nsqd of a connection and, for a Reader, the subscription."""

    endpoint: Endpoint
    topic: str = ""
    channel: str = ""
    subscribe: bytes | None = None
    #: Returns the message factory for the settings that nsqd granted.
    choose_message: Callable[[Any], MessageFactory] | None = None
    identify_extra: Mapping[str, Any] | None = None
    #: Called with nsqd's version and address.  Raises an NSQError to reject the nsqd.
    check_server: Callable[[str, str], None] | None = None
    #: Address to connect to instead of the endpoint's address, from the option ``address_map``.
    connect_to: Address | None = None


class BaseConnection:
    """Base class of connections, with the handshake (CONN-1).

    *connection* is passed to each Message.  A blocking connection, which receives no messages, passes None: with a
    reference to itself, only Python's garbage collector would free the connection.
    """

    def __init__(self, target: Target, options: ConnectionOptions, clock: Clock, connection: Any = None) -> None:
        self.target, self.options, self.clock = target, options, clock
        self.endpoint = target.endpoint
        self.address = format_address(target.endpoint.address)
        self.negotiated: Negotiated | None = None
        self.auth_reply: Any = None
        self.opened_at: float | None = None
        #: Time of the last read from nsqd.  In a blocking connection: the time at which the last command began.
        self.read_at = clock.now()
        self._stream: Any = None
        self._codec: Any = None
        limit = min(options.max_frame_size, _HANDSHAKE_BYTES)
        self._decoder = FrameDecoder[Message](limit, Message, connection)

    def _shake_hands(self, stream: ByteStream, host: str, *, heartbeats: bool = True) -> Negotiated:
        """Do the handshake.  Return the settings that nsqd granted.  The caller limits the time.

        ::

            magic, IDENTIFY [, TLS] [, compression] [, AUTH if nsqd requires it] [, SUB of a Reader]

        Args:
            host: The host name that TLS verifies.
            heartbeats: False disables heartbeats.  nsqd allows this for producers.
        Raises:
            NSQError: The handshake failed.  The text names the nsqd.
        """
        try:
            negotiated = self._identify(stream, heartbeats)
            if negotiated.tls_v1:
                tls: Any = self.options.tls
                self._check_ok(stream, "TLS", stream.start_tls(tls, host, self._decoder.take_pending()))
            algorithm: Compression | None = "snappy" if negotiated.snappy else "deflate" if negotiated.deflate else None
            if algorithm is not None:
                self._codec = make_codec(algorithm, negotiated.deflate_level or self.options.deflate_level)
                self._check_ok(stream, algorithm, self._decompress(self._decoder.take_pending()))
            if negotiated.auth_required:
                self._write(stream, commands.auth(self._secret()))
                self.auth_reply = parse_auth_reply(self._without_secret(self._response(stream, "the reply to AUTH")))
            if self.target.subscribe is not None:
                self._write(stream, self.target.subscribe)
                self._check_ok(stream, "SUB")
        except ProtocolError as error:
            error.address = self.address
            raise
        self.negotiated = negotiated
        self._decoder.limit = self.options.max_frame_size
        return negotiated

    def _identify(self, stream: ByteStream, heartbeats: bool) -> Negotiated:
        """Send IDENTIFY, and check and return the reply (NEG-3).  After an error nothing else is sent (NEG-4)."""
        options, target = self.options, self.target
        if target.identify_extra:
            options = replace(options, extra_identify={**options.extra_identify, **target.identify_extra})
        identify = build_identify(options, hostname_default=socket.gethostname(), heartbeats=heartbeats)
        stream.write(MAGIC_V2 + commands.identify(identify))
        negotiated = parse_identify_reply(self._response(stream, "the reply to IDENTIFY"), options)
        if target.check_server is not None:
            target.check_server(negotiated.version, self.address)
        if options.tls is not None and not negotiated.tls_v1:
            why = "TLS was requested, but this nsqd runs without --tls-cert; only IDENTIFY was sent"
            raise TLSNotGranted(self.address, why)
        warnings = not_granted(options, negotiated)
        if target.subscribe is not None and negotiated.max_rdy_count < 1:
            warnings.append("nsqd grants max_rdy_count 0, so it delivers no messages: check its --max-rdy-count")
        for warning in warnings:
            log_safely(log, logging.WARNING, "%s: %s", self.address, warning)
        return negotiated

    def _secret(self) -> bytes:
        secret = self.options.auth_secret
        if secret is None:
            why = "this nsqd requires AUTH; set auth_secret (only IDENTIFY was sent)"
            raise AuthFirstError("E_AUTH_FIRST", why, self.address)
        return secret.encode("utf-8") if isinstance(secret, str) else secret

    def _nsqd_error(self, body: bytes) -> NsqdError:
        """Return the exception for an error frame with *body*."""
        return error_for(self._without_secret(body), self.address)

    def _without_secret(self, body: bytes) -> bytes:
        """Replace the AUTH secret in *body*, because an nsqd or its auth server may repeat it.

        A secret of less than 4 bytes stays: its bytes also occur in other text, such as nsqd's error codes.
        """
        secret = self.options.auth_secret
        return body if secret is None or len(secret) < 4 else body.replace(self._secret(), b"<hidden>")

    def _check_ok(self, stream: ByteStream, request: str, data: bytes = b"") -> None:
        body = self._response(stream, f"OK to {request}", data)
        if body != OK:
            raise _unexpected(f"OK to {request}", FRAME_RESPONSE, self._without_secret(body))

    def _response(self, stream: ByteStream, wanted: str, data: bytes = b"") -> bytes:
        """Return the body of the next response in *data* and further reads.  Answer heartbeats before it with NOP.

        Raises NsqdError for an error frame, and ProtocolError for a message.
        """
        while True:
            kind, body = self._read_frame(stream, data)
            data = b""
            if kind == FRAME_ERROR:
                raise self._nsqd_error(body)
            if kind != FRAME_RESPONSE:
                raise _unexpected(wanted, kind, self._without_secret(body))
            if body != HEARTBEAT:
                return body
            self._write(stream, commands.NOP)

    def _write(self, stream: ByteStream, data: bytes) -> None:
        stream.write(data if self._codec is None else self._codec.compress(data))

    def _read_frame(self, stream: ByteStream, data: bytes = b"") -> Frame:
        """Return the next frame in *data*, which is decompressed, and in further reads."""
        while (frame := self._decoder.feed_one(data)) is None:
            data = self._decompress(stream.read())
        return frame

    def _decompress(self, data: bytes) -> bytes:
        """Decompress the bytes of one read.  Raises ProtocolError if the result is too large."""
        if self._codec is None:
            return data
        plain = b""
        for piece in self._codec.decompress(data):
            plain += piece
            if len(plain) > _HANDSHAKE_BYTES:
                raise ProtocolError(f"a read decompresses to more than {_HANDSHAKE_BYTES} bytes")
        return plain

    def _handshake_timeout(self, seconds: float) -> HandshakeTimeout:
        why = f"the handshake did not end within {seconds:.3g} s: is this nsqd's TCP port?"
        return HandshakeTimeout(self.address, why)


def _unexpected(wanted: str, kind: int, body: bytes) -> ProtocolError:
    shown = repr(body[:60]) + ("..." if len(body) > 60 else "")
    return ProtocolError(f"expected {wanted} in the handshake; received frame type {kind}: {shown}")


class Connection(BaseConnection):
    """A connection in the loop.  One greenlet calls ``open`` and then ``run``.  ``send`` is thread-safe."""

    #: Errors after which nsqd closes a consumer's connection, but not this one.
    outlives: tuple[type[NsqdError], ...] = ()
    _stream: Stream | None

    def __init__(self, loop: Loop, target: Target, options: ConnectionOptions, owner: Owner, clock: Clock) -> None:
        super().__init__(target, options, clock, self)
        self.loop, self.owner = loop, owner
        self.close_waited = False
        self._out: list[bytes] = []
        self._due = False  # a flush is scheduled
        self._slice_began = 0.0

    # -- opening (CONN-1, CONN-5)

    def open(self) -> None:
        """Connect and do the handshake.  Blocks the greenlet.

        Raises:
            NSQError: Opening failed, and the connection is closed.  The text names the nsqd.
        """
        host, port = self.target.connect_to or self.endpoint.address
        sock = dial(host, port, self.options.connect_timeout)
        self._stream = stream = Stream(self.loop, sock, self.address)
        seconds = self.options.handshake_timeout
        try:
            with time_limit(seconds, self._handshake_timeout(seconds)):
                self._adopt(self._shake_hands(stream, host))
        except NSQError as error:
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "this client stopped the handshake"))
            raise
        self.opened_at = self.clock.now()

    def _adopt(self, negotiated: Negotiated) -> None:
        """Apply the settings that nsqd granted."""

    # -- reading

    def run(self) -> None:
        """Read until the connection ends, and then raise the reason.  Blocks the greenlet."""
        stream = self._stream
        if stream is None:
            raise ConnectionLost(self.address, "not open")
        try:
            self._deliver(self._decoder.take_pending())
            while True:
                data = stream.read()
                self.read_at = self._slice_began = self.clock.now()
                if self._codec is None:
                    self._deliver(data)
                else:
                    for chunk in self._codec.decompress(data):
                        self._deliver(chunk)
                        self._let_others_run()
        except NSQError as error:
            if isinstance(error, ProtocolError):
                error.address = self.address
            self.close(error)
            raise
        except BaseException:
            self.close(ConnectionLost(self.address, "closed by this client"))
            raise

    def _deliver(self, data: bytes) -> None:
        messages, frames = self._decoder.feed(data)
        if messages:
            self._on_messages(messages)
        for frame in frames:
            self._on_frame(frame)
        if self._decoder.error is not None:
            raise self._decoder.error

    def _let_others_run(self) -> None:
        """Let other greenlets run if one read takes long to handle.  If one closes the connection, raise the reason."""
        if self.clock.now() - self._slice_began > SLICE:
            let_io()
            self._slice_began = self.clock.now()
            if self._stream is not None and self._stream.closed is not None:
                raise self._stream.closed

    def _on_messages(self, messages: list[Message]) -> None:
        raise ProtocolError("nsqd sent a message on a connection without a subscription")

    def _on_frame(self, frame: Frame) -> None:
        body = frame.body
        if frame.kind == FRAME_ERROR:
            error = self._nsqd_error(body)
            if error.closes_connection and not isinstance(error, self.outlives):
                raise error
            self.owner.on_error_frame(self, error)
        elif body == HEARTBEAT:
            # One NOP answers all heartbeats of this read: nsqd only checks that it receives bytes.
            if not (self._out and self._out[-1] is commands.NOP) and self.unsent() < MOST_UNSENT:
                self.send(commands.NOP)
        else:
            if body == CLOSE_WAIT:
                self.close_waited = True
            self.owner.on_response(self, self._without_secret(body))

    # -- writing

    def send(self, data: bytes) -> None:
        """Queue *data*.  One write sends all data that is queued in an iteration of the loop.  Thread-safe."""
        self._out.append(data)
        if not self._due:
            self._due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._emit(self._take(self._out))

    @staticmethod
    def _take(queue: list[bytes]) -> bytes:
        """Remove the items of *queue*, and return them joined."""
        count = len(queue)  # items that other threads append meanwhile stay queued
        data = b"".join(queue[:count])
        del queue[:count]
        return data

    def _emit(self, data: bytes) -> None:
        stream = self._stream
        if stream is not None and stream.closed is None and data:
            self._write(stream, data)

    # -- watching

    def close_if_dead(self, now: float) -> None:
        """Close the connection if nsqd is silent for two heartbeat intervals or accepts no bytes for ``write_timeout``.

        Call this method about once a second in the loop's thread.
        """
        stream = self._stream
        if stream is None or stream.closed is not None or self.opened_at is None:
            return
        silent = now - max(self.read_at, self.opened_at)
        if silent > 2 * self.options.heartbeat_interval:
            why = f"nsqd has sent no bytes for {silent:.1f} s, more than two heartbeat intervals"
            self.close(HeartbeatTimeout(self.address, why))
        elif stream.stuck_since is not None and now - stream.stuck_since > self.options.write_timeout:
            why = f"nsqd has accepted no bytes for {self.options.write_timeout:g} s"
            self.close(ConnectionLost(self.address, why))

    # -- the end

    def is_open(self) -> bool:
        """Return whether the handshake has succeeded and the connection is not closed."""
        return self.opened_at is not None and self._stream is not None and self._stream.closed is None

    def close(self, reason: NSQError) -> None:
        """Close at once.  :meth:`run` raises *reason*.  A second call does nothing.  Call it in the loop's thread."""
        stream = self._stream
        if stream is not None:
            if not isinstance(reason, NSQConnectionError):
                reason = ConnectionLost(self.address, str(reason))
            stream.close(reason)

    def shut_down(self) -> None:
        """Send the queued bytes, then shut down writing.  nsqd reads all bytes and then closes the connection."""
        self._flush()
        if self._stream is not None:
            self._stream.shut_down()

    def abandon(self) -> None:
        """Drop the connection in a forked child, because the parent keeps using it."""
        if self._stream is not None:
            self._stream.abandon()

    def unsent(self) -> int:
        """Return the number of unsent bytes."""
        return self._stream.unsent if self._stream is not None else 0

    def __repr__(self) -> str:
        state = "open" if self.is_open() else "closed"
        return f"<{type(self).__name__} {self.endpoint} {state}>"


def connection_stats(connection: BaseConnection, now: float, **counts: int) -> ConnectionStats:
    """Return the statistics of one connection.  *counts* are the fields of ConnectionStats that count messages."""
    stream = connection._stream
    return ConnectionStats(
        address=connection.address,
        partition=connection.endpoint.partition,
        open_for=0.0 if connection.opened_at is None else now - connection.opened_at,
        **counts,
        bytes_in=stream.bytes_in if stream is not None else 0,
        bytes_out=stream.bytes_out if stream is not None else 0,
        last_read_ago=now - connection.read_at,
        negotiated=connection.negotiated,
        auth=connection.auth_reply,
    )
