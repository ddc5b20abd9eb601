"""A connection to one nsqd that one thread uses at a time: a command goes out, its answer comes back.

It asks nsqd for no heartbeats, so nothing is read between two commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ConnectionLost,
    HandshakeTimeout,
    NSQConnectionError,
    NSQError,
    ProtocolError,
    error_for,
)
from gnsq_lite.net.blocking_stream import READ_SIZE, BlockingStream, DeadlinePassed
from gnsq_lite.net.dialing import dial_blocking
from gnsq_lite.net.handshaking import HANDSHAKE_BYTES, shake_hands
from gnsq_lite.options import Address, ConnectionOptions, format_address
from gnsq_lite.wire import commands
from gnsq_lite.wire.compress import Codec
from gnsq_lite.wire.constants import FRAME_ERROR, HEARTBEAT, OK
from gnsq_lite.wire.frames import OK_BYTES, Frame, FrameDecoder
from gnsq_lite.wire.identify import Negotiated


class BlockingConnection:
    """A connection to *endpoint*; :meth:`open` comes first.

    Args:
        check_server: Called with nsqd's version and address; raises if nsqd is not to be used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectionOptions,
        clock: Clock = SYSTEM_CLOCK,
        check_server: Callable[[str, str], None] | None = None,
    ) -> None:
        self.endpoint, self.options, self.clock = endpoint, options, clock
        self._check_server = check_server
        self.address = format_address(endpoint.address)
        self.negotiated: Negotiated | None = None
        self.auth_reply: Any = None
        self.opened_at: float | None = None
        #: When its latest command began, and when the command began that is not answered; 0.0: none.
        self.used_at = self.busy_since = 0.0
        #: Messages that nsqd took on it.
        self.published = 0
        #: Whether bytes of the latest command were sent.
        self.is_sent = False
        self._is_spoiled = False  # bytes came that answer no command, or it was closed
        self._codec: Codec | None = None
        self._stream: BlockingStream | None = None
        self._decoder: FrameDecoder[Any] = FrameDecoder(HANDSHAKE_BYTES, _refuse_message)

    def open(self, address: Address, seconds: float, identify_extra: Mapping[str, Any]) -> None:
        """Connect to *address* and shake hands, in *seconds* at most and within the options' own limits.

        Raises NSQConnectionError, NsqdError, ProtocolError; it is closed then.
        """
        options, began = self.options, self.clock.now()
        sock = dial_blocking(*address, min(options.connect_timeout, seconds))
        self._stream = stream = BlockingStream(sock, self.address)
        limit = min(options.handshake_timeout, began + seconds - self.clock.now())
        stream.deadline = self.clock.now() + limit
        try:
            opened = shake_hands(
                stream,
                self._decoder,
                options,
                address[0],
                self.address,
                identify_extra=identify_extra,
                check_server=self._check_server,
                heartbeats=False,
            )
        except DeadlinePassed:
            self.close()
            why = f"no end of the handshake within {limit:.3g} s: is this nsqd's TCP port?"
            raise HandshakeTimeout(self.address, why) from None
        except BaseException as error:
            self._name_in(error)
            self.close()
            raise
        self._codec, self.negotiated, self.auth_reply = opened.codec, opened.negotiated, opened.auth_reply
        self._decoder.limit = options.max_frame_size
        self._is_spoiled = self._decoder.pending_bytes > 0
        self.opened_at = self.clock.now()

    def exchange(self, command: bytes, timeout: float, deadline: float) -> bytes:
        """Send *command* and return the body of its answer.

        Args:
            timeout: Seconds for each call of the system, as long as all goes well.
            deadline: When the exchange ends, by the clock.
        Raises:
            NsqdError: nsqd refused it; the connection may go on unless ``closes_connection``.
            NSQConnectionError, ProtocolError, DeadlinePassed: close it; ``is_sent`` says whether nsqd may have it.
        """
        stream: Any = self._stream
        codec = self._codec
        self.is_sent = False
        data = command if codec is None else codec.compress(command)
        if timeout != stream.limit:
            stream.set_limit(timeout)
        stream.deadline = deadline
        try:
            sent = stream.send(data)
        except OSError as error:
            self._hear_out(error)
        self.is_sent = True
        stream.bytes_out += sent
        if sent < len(data):
            self._send_rest(data[sent:])
        try:
            answer = stream.receive(READ_SIZE)
        except OSError as error:
            stream.fail(error)
        stream.bytes_in += len(answer)
        if answer == OK_BYTES and codec is None:
            return OK
        if not answer:
            raise ConnectionLost(self.address, "connection closed by nsqd")
        return self._answer(answer)

    def _send_rest(self, data: bytes) -> None:
        try:
            self._stream.write(data)  # type: ignore[union-attr]
        except NSQConnectionError as error:
            self._hear_out(error)

    def _hear_out(self, error: OSError) -> None:
        """Raise what nsqd said before it closed, if it said why, else *error*, the failure of a write."""
        if isinstance(error, (ConnectionError, NSQConnectionError)):
            with suppress(NSQConnectionError, DeadlinePassed):
                self._answer(self._stream.read())  # type: ignore[union-attr]
        self._stream.fail(error)  # type: ignore[union-attr]

    def _answer(self, data: bytes) -> bytes:
        """Return the body of the answer that *data*, or what comes next, holds.  Raises as :meth:`exchange`."""
        try:
            while (frame := self._frame(data)) is None:
                data = self._stream.read()  # type: ignore[union-attr]
        except ProtocolError as error:
            self._name_in(error)
            raise
        if frame.kind == FRAME_ERROR:
            raise error_for(frame.body, self.address)
        return frame.body

    def _frame(self, data: bytes) -> Frame | None:
        """Return the first frame that is no heartbeat; what comes after it spoils the connection."""
        found: Frame | None = None
        for piece in (data,) if self._codec is None else self._codec.decompress(data):
            _, frames = self._decoder.feed(piece)
            others = [frame for frame in frames if frame.body != HEARTBEAT]
            if len(others) < len(frames):  # one answers all that came meanwhile
                self._stream.write(commands.NOP if self._codec is None else self._codec.compress(commands.NOP))  # type: ignore[union-attr]
            self._is_spoiled = self._is_spoiled or len(others) > (found is None)
            found = found or (others[0] if others else None)
            if self._decoder.error is not None:
                if found is None:
                    raise self._decoder.error
                self._is_spoiled = True
                break
        if found is not None and self._decoder.pending_bytes:
            self._is_spoiled = True
        return found

    def _name_in(self, error: BaseException) -> None:
        if isinstance(error, ProtocolError):
            error.address = self.address

    def is_quiet(self) -> bool:
        """Return whether it is open and neither bytes nor an end or error wait to be read.  Never blocks.

        With TLS or compression bytes may wait that decode to nothing, such as the empty block at the end of a flush.
        """
        stream: Any = self._stream
        if self._is_spoiled or stream is None:
            return False
        while not stream.is_quiet():
            if self._codec is None and not stream.is_tls:
                return False
            try:
                data = stream.read_now()
                if data and (self._codec is None or next(self._codec.decompress(data), b"")):
                    return False
            except NSQError:
                return False
        return True

    def shut_down(self) -> None:
        """Have the thread that uses it find its end; from another thread."""
        if self._stream is not None:
            self._stream.shut_down()

    def close(self, *, goodbye: bool = False) -> None:
        """Close; a second call does nothing.  *goodbye*: no command is on its way, so TLS ends in order."""
        self._is_spoiled = True
        if self._stream is not None:
            self._stream.close(goodbye=goodbye)

    @property
    def read_at(self) -> float:
        """When its latest command began, or it was opened: about when nsqd was last heard."""
        return max(self.used_at, self.opened_at or 0.0)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes received and sent."""
        return (self._stream.bytes_in, self._stream.bytes_out) if self._stream is not None else (0, 0)


def _refuse_message(*_: Any) -> Any:
    raise ProtocolError("a message came to a connection that has not subscribed")
