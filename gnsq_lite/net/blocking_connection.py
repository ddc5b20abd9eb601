"""A blocking connection to one nsqd, for publishing threads.

Only one thread reads at a time.  IDENTIFY disables heartbeats, so nsqd sends only answers.  Errors are DeadlinePassed
and NSQErrors that name the nsqd.  Exceptions of signal handlers, and exceptions that another thread raises in the
reading thread, propagate.  They lose no bytes: one C call reads the socket and stores the bytes, or sends bytes and
stores their number.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gnsq_lite._core import exchange, is_accelerated, receive
from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import NSQError
from gnsq_lite.net.connection import BaseConnection, Target
from gnsq_lite.net.dialing import dial
from gnsq_lite.net.stream import DONTWAIT, ByteStream, lost
from gnsq_lite.options import Address, ConnectionOptions

#: Maximum bytes of one read of :meth:`BlockingStream.read_now`.
_READ_SIZE = 4096
#: TCP keepalive: idle seconds before the first probe, seconds between probes, number of probes before the reset.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: In Linux's ``struct tcp_info`` the first byte is the state, and bytes 128 to 135 are the number of received bytes.
#: getsockopt() keeps the GIL.  poll() releases the GIL, which costs 50 threads a fifth of their CPU time.
_TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
_ESTABLISHED = b"\1"
_FLAGS = (DONTWAIT,)


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


class BlockingStream(ByteStream):
    """A stream whose methods block the calling thread.  The stream owns *sock*, and :meth:`close` closes it."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        super().__init__(sock, address)
        #: Deadline of :meth:`read` and :meth:`write`, in seconds of the monotonic clock.
        self.deadline = float("inf")
        #: Bytes that :meth:`wait` has read, and that the caller has not taken yet.
        self.received: list[bytes] = []
        #: The data of the last :meth:`send`, the numbers of bytes that the socket accepted, and the caller's mark.
        self.sending: tuple[bytes, list[int], Any] = (b"", [], None)
        self._limit = 0.0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._number = sock.fileno()
        self._send_now: Callable[[bytes | memoryview, int], int] = sock.send
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def wait(self, deadline: float) -> None:
        """Wait for bytes or EOF until *deadline*, and add them to :attr:`received`.

        Raises NSQConnectionError, DeadlinePassed.
        """
        polls = not is_accelerated
        while not self.received:
            left = deadline - SYSTEM_CLOCK.now()
            if left <= 0:
                raise DeadlinePassed
            try:
                if not polls:
                    self._limit_reads(left)
                if not polls or self._poll.poll(left * 1000):
                    receive(self._number, self.received)
            except OSError as error:
                raise self._lost(error) from error
            polls = True

    def _lost(self, error: OSError) -> Exception:
        """Return *error* as NSQConnectionError, but an error without errno, of a signal handler, unchanged."""
        return lost(self.address, error) if error.errno is not None else error

    def _limit_reads(self, left: float) -> None:
        """Limit a read to about *left* seconds, and to less.

        Linux ends a read with SO_RCVTIMEO up to an eighth of the time late.  The rest of the time is for poll(), which
        is exact but costs a system call.
        """
        if not 0.4 * left < self._limit < 0.85 * left:
            self._limit = left * 0.8
            whole = int(self._limit)
            packed = struct.pack("ll", whole, max(int((self._limit - whole) * 1e6), 0 if whole else 1000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)

    def read(self) -> bytes:
        """Wait for bytes, and return at least one decrypted byte.  Raises NSQConnectionError, DeadlinePassed."""
        data = b""
        while not data:
            self.wait(self.deadline)
            data = self.decrypt(self.received.pop())
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
        """Send *data* behind what is unsent, without encryption.  Raises NSQConnectionError, DeadlinePassed.

        OpenSSL may call this in a read.  So :attr:`sending` keeps the data and the mark of the last :meth:`send`.
        """
        before, counts, mark = self.sending
        self.sending = (before + data, counts, mark)
        self.send_rest(self.deadline)

    def send(self, data: bytes, mark: Any = None) -> bool:
        """Send the bytes of *data* that the socket accepts at once, and return whether these are all.

        *mark* is kept in :attr:`sending`.  Raises NSQConnectionError.
        """
        counts: list[int] = []
        self.sending = (data, counts, mark)
        try:
            counts.extend(map(self._send_now, (data,), _FLAGS))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        self.bytes_out += counts[0]
        return counts[0] == len(data)

    def exchange(self, data: bytes, mark: Any, left: float) -> bool:
        """Call :meth:`send`, and if all bytes are sent, wait once for bytes, less than *left* seconds.

        One call of C does both, and takes the GIL once.
        """
        if not is_accelerated:
            return self.send(data, mark)
        if not 0.4 * left < self._limit < 0.85 * left:
            self._limit_reads(left)
        counts: list[int] = []
        self.sending = (data, counts, mark)
        try:
            exchange(self._number, data, counts, self.received)
        except OSError as error:
            raise self._lost(error) from error
        self.bytes_out += counts[0]
        return counts[0] == len(data)

    def unsent(self) -> int:
        """Return the number of bytes of the last :meth:`send` that the socket has not accepted."""
        data, counts, _ = self.sending
        return len(data) - sum(counts)

    def send_rest(self, deadline: float) -> None:
        """Send the bytes that are left of the last :meth:`send`.  Raises NSQConnectionError, DeadlinePassed."""
        data, counts, _ = self.sending
        while (left := self.unsent()) > 0:
            try:
                counts.extend(map(self._send_now, (memoryview(data)[-left:],), _FLAGS))
            except BlockingIOError:
                self._wait_for_room(deadline)
            except OSError as error:
                raise self._lost(error) from error
            else:
                self.bytes_out += counts[-1]

    def _wait_for_room(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLOUT)
        left = deadline - SYSTEM_CLOCK.now()
        if left <= 0 or not poll.poll(left * 1000):
            raise DeadlinePassed

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

    _stream: Any

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectionOptions,
        clock: Clock = SYSTEM_CLOCK,
        check_server: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(Target(endpoint=endpoint, check_server=check_server), options, clock)
        #: False after an unexpected byte and after :meth:`close`.
        self.is_usable = True

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
        self.is_usable = not self._decoder.pending_bytes
        self.opened_at = self.clock.now()

    def is_quiet(self) -> bool:
        """Return whether the connection is open and there is no byte, EOF or error to read.  Never blocks.

        Blocks of TLS and of compression without plain bytes are read and ignored.
        """
        stream: Any = self._stream
        if not self.is_usable or stream is None or stream.received:
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
        self.is_usable = False
        if self._stream is not None:
            self._stream.close(close_notify=close_notify)
