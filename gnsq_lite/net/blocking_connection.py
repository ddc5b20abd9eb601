"""A blocking connection to one nsqd: a thread sends a command and waits for the response.

Only one thread uses the connection at a time.  IDENTIFY disables heartbeats, so the connection reads nothing between
two commands.  Errors are DeadlinePassed and NSQErrors that name the nsqd.  Exceptions of signal handlers propagate.
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
from gnsq_lite.wire.frames import OK_BYTES

#: Maximum bytes of one read.  nsqd's responses to a producer are short.
_READ_SIZE = 4096
#: TCP keepalive: idle seconds before the first probe, seconds between probes, number of probes before the reset.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: In Linux's ``struct tcp_info`` the first byte is the state, and bytes 128 to 135 are the number of received bytes.
#: getsockopt() keeps the GIL.  poll() releases the GIL, which costs 50 threads a fifth of their CPU time.
_TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
_ESTABLISHED = b"\1"


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


class BlockingStream(ByteStream):
    """A stream whose methods block the calling thread.  The stream owns *sock*, and :meth:`close` closes it."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        super().__init__(sock, address)
        #: Deadline of :meth:`read` and :meth:`write`, in seconds of the monotonic clock.
        self.deadline = float("inf")
        #: Current time limit of one system call, in seconds.
        self.limit = 0.0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        #: The methods ``sock.send`` and ``sock.recv``.  The caller passes their OSErrors to :meth:`fail`.
        self.send: Callable[[bytes | memoryview], int] = sock.send
        self.receive: Callable[[int], bytes] = sock.recv

    def set_limit(self, seconds: float) -> None:
        """Limit each system call to *seconds*."""
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
        """Wait for bytes, and return at least one decrypted byte.  Raises NSQConnectionError, DeadlinePassed."""
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
        """Return the decrypted bytes that have arrived, perhaps b"".  Never blocks.  Raises NSQConnectionError."""
        try:
            return self.decrypt(self._sock.recv(_READ_SIZE, DONTWAIT))
        except BlockingIOError:
            return b""
        except OSError as error:
            raise lost(self.address, error) from error

    def write(self, data: bytes) -> None:
        """Encrypt and send *data*.  Raises NSQConnectionError, DeadlinePassed."""
        self.send_raw(data if self.tls is None else self.tls.encrypt(data))

    def send_raw(self, data: bytes) -> None:
        """Send *data* without encryption.  Raises NSQConnectionError, DeadlinePassed."""
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
        """Raise NSQConnectionError or DeadlinePassed for *error*, which :attr:`send` or :attr:`receive` raised."""
        if isinstance(error, BlockingIOError):
            raise DeadlinePassed from None
        if isinstance(error, TimeoutError) and error.errno is None:  # raised by a signal handler
            raise error
        raise lost(self.address, error) from error

    def is_quiet(self) -> bool:
        """Return whether there is no byte, EOF or error to read.  Never blocks."""
        if _TCP_INFO is not None:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 136)
            if info[:1] == _ESTABLISHED and info[128:] == self.bytes_in.to_bytes(8, sys.byteorder):
                return True
        return not self._poll.poll(0)

    def shut_down(self) -> None:
        """Shut the socket down.  A thread that blocks in a read then reads EOF.  Thread-safe."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self, *, close_notify: bool = False) -> None:
        """Close the socket.  If *close_notify* is true, send TLS close_notify first.  A second call does nothing."""
        if close_notify:
            self._send_close_notify()
        self._sock.close()


class BlockingConnection(BaseConnection):
    """A blocking connection to *endpoint*.  Call :meth:`open` first.

    Args:
        check_server: Called with nsqd's version and address.  Raises an NSQError to reject the nsqd.
    """

    _stream: BlockingStream | None

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectionOptions,
        clock: Clock = SYSTEM_CLOCK,
        check_server: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(Target(endpoint=endpoint, check_server=check_server), options, clock)
        #: Start time of the unanswered command, or 0.0.
        self.busy_since = 0.0
        #: Messages that nsqd accepted on this connection.
        self.published = 0
        #: Whether bytes of the latest command were sent.
        self.is_sent = False
        self._is_unusable = False  # unexpected bytes arrived, or close() was called

    def open(self, address: Address, seconds: float, identify_extra: Mapping[str, Any]) -> None:
        """Connect to *address* and do the handshake, within *seconds* and the time limits of the options.

        Resolving a host name has no time limit.  Closes the connection after an error.  Raises NSQError.
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
        self._is_unusable = self._decoder.pending_bytes > 0
        self.opened_at = self.clock.now()

    def exchange(self, command: bytes, timeout: float, deadline: float) -> bytes:
        """Send *command* and return the body of the response.

        Args:
            timeout: Maximum seconds of the first send, and of the first read.
            deadline: Monotonic time by which all further sends and reads must end.
        Raises:
            NsqdError: nsqd refused the command.  The connection stays usable unless ``closes_connection`` is true.
            NSQConnectionError, ProtocolError, DeadlinePassed: The caller must close the connection.  If ``is_sent`` is
                true, nsqd may have received the command.
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
        """Raise the error frame that nsqd sent before it closed the connection.  If there is none, raise *error*."""
        if isinstance(error, (ConnectionError, NSQConnectionError)):
            with suppress(NSQConnectionError, DeadlinePassed):
                self._answer(b"")
        self._stream.fail(error)  # type: ignore[union-attr]

    def _answer(self, data: bytes) -> bytes:
        """Return the body of the response in *data* and further reads.  Raises the errors of :meth:`exchange`.

        Bytes after the response make the connection unusable.
        """
        stream: Any = self._stream
        try:
            frame = self._read_frame(stream, self._decompress(data))
            while frame.body == HEARTBEAT:
                frame = self._read_frame(stream)
        except ProtocolError as error:
            error.address = self.address
            raise
        self._is_unusable |= self._decoder.pending_bytes > 0
        if frame.kind == FRAME_ERROR:
            raise error_for(frame.body, self.address)
        return frame.body

    def is_quiet(self) -> bool:
        """Return whether the connection is open and there is no byte, EOF or error to read.  Never blocks.

        Blocks of TLS and of compression without plain bytes are read and ignored.
        """
        stream: Any = self._stream
        if self._is_unusable or stream is None:
            return False
        while not stream.is_quiet():
            if self._codec is None and stream.tls is None:
                return False
            try:
                if self._decompress(stream.read_now()):
                    return False
            except NSQError:
                return False
        return True

    def shut_down(self) -> None:
        """Shut the socket down.  A thread that waits for a response then reads EOF.  Thread-safe."""
        if self._stream is not None:
            self._stream.shut_down()

    def close(self, *, close_notify: bool = False) -> None:
        """Close the connection.  If *close_notify* is true, send TLS close_notify first.  May be called twice."""
        self._is_unusable = True
        if self._stream is not None:
            self._stream.close(close_notify=close_notify)
