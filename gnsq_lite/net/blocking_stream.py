"""A TCP stream that one thread uses at a time and that blocks in the system's calls.

Errors are the library's own, and name the nsqd.  What a signal handler raises passes through, TimeoutError too.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.stream import DONTWAIT, ByteStream, lost

#: Bytes of one read: nsqd's answers to a producer are short.
READ_SIZE = 4096
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
                data = self.receive(READ_SIZE)
            except OSError as error:
                self.fail(error)
            data = self.decrypt(data)
        return data

    def read_now(self) -> bytes:
        """Return what has come and can be decrypted, maybe b"", without waiting.  Raises NSQConnectionError."""
        try:
            return self.decrypt(self._sock.recv(READ_SIZE, DONTWAIT))
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
        """Have the thread that waits in this stream find its end; from another thread."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self, *, goodbye: bool = False) -> None:
        """Close; a second call does nothing.  With *goodbye* TLS tells nsqd that nothing more comes."""
        if goodbye:
            self._say_goodbye()
        self._sock.close()
