"""A connection to one nsqd that one thread uses at a time: a command goes out, its answer comes back.

The thread blocks in the system's calls.  The connection asks nsqd for no heartbeats, so nothing is read between two
commands.  Errors are the library's own, and name the nsqd.  What a signal handler raises passes through, TimeoutError
too.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQConnectionError, NSQError, ProtocolError, error_for
from gnsq_lite.net.connection import BaseConnection, Target
from gnsq_lite.net.dialing import dial
from gnsq_lite.net.stream import DONTWAIT, ByteStream, lost
from gnsq_lite.options import Address, ConnectionOptions
from gnsq_lite.wire.constants import FRAME_ERROR, HEARTBEAT, OK
from gnsq_lite.wire.frames import OK_BYTES, Frame

#: Bytes of one read: nsqd's answers to a producer are short.
_READ_SIZE = 4096
#: Seconds without traffic after which the system probes the peer, and between two probes; probes until it is given up.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: The first byte of Linux's ``struct tcp_info`` is the state, bytes 128 to 135 count the received bytes.  getsockopt()
#: holds the GIL where poll() releases it; each release costs a switch of threads, a fifth of the CPU of 50 threads.
_TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
_ESTABLISHED = b"\1"


class DeadlinePassed(Exception):
    """A call was not done by its deadline."""


class BlockingStream(ByteStream):
    """A connected stream.  *sock* belongs to it from now on."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        super().__init__(sock, address)
        #: When :meth:`read` and :meth:`write` end, in seconds of the monotonic clock.
        self.deadline = float("inf")
        #: Seconds that one call of the system may take now.
        self.limit = 0.0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        #: Send some bytes as they are, return how many; receive at most so many.  An OSError is for :meth:`fail`.
        self.send: Callable[[bytes | memoryview], int] = sock.send
        self.receive: Callable[[int], bytes] = sock.recv

    def set_limit(self, seconds: float) -> None:
        """Let each call of the system take at most *seconds*."""
        self.limit = seconds
        whole = int(seconds)
        packed = struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)

    def _limit_to_deadline(self) -> None:
        left = self.deadline - SYSTEM_CLOCK.now()
        if left <= 0:
            raise DeadlinePassed
        self.set_limit(left)

    def read(self) -> bytes:
        """Return the next bytes, decrypted, at least one.  Raises NSQConnectionError, DeadlinePassed."""
        data = b""
        while not data:
            self._limit_to_deadline()
            try:
                data = self.receive(_READ_SIZE)
            except OSError as error:
                self.fail(error)
            data = self.decrypt(data)
        return data

    def read_now(self) -> bytes:
        """Return what has come and can be decrypted, maybe b"", without waiting.  Raises NSQConnectionError."""
        try:
            return self.decrypt(self._sock.recv(_READ_SIZE, DONTWAIT))
        except BlockingIOError:
            return b""
        except OSError as error:
            raise lost(self.address, error) from error

    def write(self, data: bytes) -> None:
        """Send *data*, encrypted.  Raises NSQConnectionError, DeadlinePassed."""
        self.send_raw(data if self.tls is None else self.tls.encrypt(data))

    def send_raw(self, data: bytes) -> None:
        """Send *data* as it is.  Raises NSQConnectionError, DeadlinePassed."""
        rest: bytes | memoryview = data
        while rest:
            self._limit_to_deadline()
            try:
                sent = self.send(rest)
            except OSError as error:
                self.fail(error)
            self.bytes_out += sent
            rest = memoryview(rest)[sent:]

    def fail(self, error: OSError) -> NoReturn:
        """Raise the library's error, or DeadlinePassed, for what :attr:`send` or :attr:`receive` raised."""
        if isinstance(error, BlockingIOError):
            raise DeadlinePassed from None
        if isinstance(error, TimeoutError) and error.errno is None:  # a signal handler's
            raise error
        raise lost(self.address, error) from error

    def is_quiet(self) -> bool:
        """Return whether nothing waits to be read: no byte, no end of the stream, no error.  Never blocks."""
        if _TCP_INFO is not None:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 136)
            if info[:1] == _ESTABLISHED and info[128:] == self.bytes_in.to_bytes(8, sys.byteorder):
                return True
        return not self._poll.poll(0)

    def shut_down(self) -> None:
        """Let the thread that waits in this stream find its end; from another thread."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self, *, goodbye: bool = False) -> None:
        """Close; a second call does nothing.  *goodbye*: send the end of TLS first."""
        if goodbye:
            self._say_goodbye()
        self._sock.close()


class BlockingConnection(BaseConnection):
    """A connection to *endpoint*; :meth:`open` comes first.

    Args:
        check_server: Called with nsqd's version and address; raises if nsqd is not to be used.
    """

    _stream: BlockingStream | None

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectionOptions,
        clock: Clock = SYSTEM_CLOCK,
        check_server: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(Target(endpoint=endpoint, check_server=check_server), options, clock, _refuse_message)
        #: When the command began that is not answered; 0.0: none.
        self.busy_since = 0.0
        #: Messages that nsqd took on it.
        self.published = 0
        #: Whether bytes of the latest command were sent.
        self.is_sent = False
        self._is_spoiled = False  # bytes came that answer no command, or it was closed

    def open(self, address: Address, seconds: float, identify_extra: Mapping[str, Any]) -> None:
        """Connect to *address* and shake hands, in *seconds* at most and within the options' own limits.

        Raises NSQConnectionError, NsqdError, ProtocolError; it is closed then.
        """
        options, ends = self.options, self.clock.now() + seconds
        self.target = replace(self.target, identify_extra=identify_extra)
        sock = dial(*address, min(options.connect_timeout, seconds), blocks=True)
        self._stream = stream = BlockingStream(sock, self.address)
        limit = min(options.handshake_timeout, ends - self.clock.now())
        stream.deadline = self.clock.now() + limit
        try:
            self._shake_hands(stream, address[0], heartbeats=False)
        except BaseException as error:
            self.close()
            if isinstance(error, DeadlinePassed):
                raise self._handshake_timeout(limit) from None
            raise
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
        codec, tls = self._codec, stream.tls
        self.is_sent = False
        data = command if codec is None else codec.compress(command)
        if tls is not None:
            data = tls.encrypt(data)
        if timeout != stream.limit:
            stream.set_limit(timeout)
        stream.deadline = deadline
        try:
            sent = stream.send(data)
            self.is_sent = True
            stream.bytes_out += sent
            if sent < len(data):
                stream.send_raw(data[sent:])
        except OSError as error:
            self._raise_reason(error)
        try:
            answer = stream.receive(_READ_SIZE)
        except OSError as error:
            stream.fail(error)
        if answer == OK_BYTES and codec is None:
            stream.bytes_in += len(answer)
            return OK
        return self._answer(stream.decrypt(answer))

    def _raise_reason(self, error: OSError) -> None:
        """Raise the error frame that nsqd sent before it closed, if there is one, else *error*, of a failed write."""
        if isinstance(error, (ConnectionError, NSQConnectionError)):
            with suppress(NSQConnectionError, DeadlinePassed):
                self._answer(b"")
        self._stream.fail(error)  # type: ignore[union-attr]

    def _answer(self, data: bytes) -> bytes:
        """Return the body of the answer that *data*, or what comes next, holds.  Raises as :meth:`exchange`."""
        try:
            while (frame := self._frame(data)) is None:
                data = self._stream.read()  # type: ignore[union-attr]
        except ProtocolError as error:
            error.address = self.address
            raise
        if frame.kind == FRAME_ERROR:
            raise error_for(frame.body, self.address)
        return frame.body

    def _frame(self, data: bytes) -> Frame | None:
        """Return the first frame that is no heartbeat; what comes after it spoils the connection."""
        found: list[Frame] = []
        for piece in (data,) if self._codec is None else self._codec.decompress(data):
            found += [frame for frame in self._decoder.feed(piece)[1] if frame.body != HEARTBEAT]
            if self._decoder.error is not None or len(found) > 1:
                break
        if not found:
            return None
        self._is_spoiled |= len(found) > 1 or self._decoder.error is not None or self._decoder.pending_bytes > 0
        return found[0]

    def is_quiet(self) -> bool:
        """Return whether it is open and neither bytes nor an end or error wait to be read.  Never blocks.

        With TLS or compression bytes may wait that decode to nothing, such as the empty block at the end of a flush.
        """
        stream: Any = self._stream
        if self._is_spoiled or stream is None:
            return False
        while not stream.is_quiet():
            if self._codec is None and stream.tls is None:
                return False
            try:
                data = stream.read_now()
                if data and (self._codec is None or next(self._codec.decompress(data), b"")):
                    return False
            except NSQError:
                return False
        return True

    def shut_down(self) -> None:
        """Let the thread that uses it find its end; from another thread."""
        if self._stream is not None:
            self._stream.shut_down()

    def close(self, *, goodbye: bool = False) -> None:
        """Close; a second call does nothing.  *goodbye*: no command is on its way, so TLS ends in order."""
        self._is_spoiled = True
        if self._stream is not None:
            self._stream.close(goodbye=goodbye)


def _refuse_message(*_: Any) -> Any:
    raise ProtocolError("a message came to a connection that has not subscribed")
