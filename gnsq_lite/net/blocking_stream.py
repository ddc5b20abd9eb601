"""A TCP stream that one thread uses at a time and that blocks in the system's calls; TLS by :mod:`ssl`.

Errors are the library's own, and name the nsqd.  What a signal handler raises passes through, TimeoutError too.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectionLost, NSQConnectionError, TLSError
from gnsq_lite.net.stream import lost
from gnsq_lite.net.tls import context_of, handshake_failure, handshake_lock, tls_failure
from gnsq_lite.options import TLSOptions

#: Bytes of one read: nsqd's answers to a producer are short.
READ_SIZE = 4096
#: Seconds without traffic after which the system probes the peer, and between two probes; probes until it is given up.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
#: The first byte of Linux's ``struct tcp_info`` is the state, bytes 128 to 135 count the received bytes.  getsockopt()
#: holds the GIL where poll() releases it; each release costs a switch of threads, a fifth of the CPU of 50 threads.
_TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
_ESTABLISHED = b"\1"
#: Seconds by which a call that ended at its deadline may seem early.
_EARLY = 0.01


class DeadlinePassed(Exception):
    """A call was not done by its deadline."""


class BlockingStream:
    """A connected stream.  *sock* belongs to it from now on."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock: Any = sock
        self.address = address
        self.bytes_in = self.bytes_out = 0
        #: When :meth:`read`, :meth:`write` and :meth:`start_tls` end, in seconds of the monotonic clock.
        self.deadline = float("inf")
        #: Seconds that one call of the system may take now.
        self.limit = 0.0
        self._pending: Callable[[], int] | None = None
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        #: Send some bytes, return how many; receive at most so many.  An OSError of theirs is for :meth:`fail`.
        self.send: Callable[[bytes | memoryview], int] = sock.send
        self.receive: Callable[[int], bytes] = sock.recv

    def set_limit(self, seconds: float) -> None:
        """Let each call of the system take at most *seconds*."""
        self.limit = seconds
        if self._pending is not None:  # ssl retries a call that ends by SO_RCVTIMEO
            self._sock.settimeout(max(seconds, 0.001))
            return
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
        """Return the next bytes, at least one.  Raises NSQConnectionError, DeadlinePassed."""
        self._limit_to_deadline()
        try:
            data = self.receive(READ_SIZE)
        except OSError as error:
            self.fail(error)
        if not data:
            raise ConnectionLost(self.address, "connection closed by nsqd")
        self.bytes_in += len(data)
        return data

    def read_now(self) -> bytes:
        """Return what has come and can be decrypted, maybe b"", without waiting.  Raises NSQConnectionError."""
        self._sock.settimeout(0)
        try:
            data = self.receive(READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        except OSError as error:
            raise lost(self.address, error) from error
        finally:
            self._sock.settimeout(None)
            self.limit = 0.0
        if not data:
            raise ConnectionLost(self.address, "connection closed by nsqd")
        self.bytes_in += len(data)
        return data

    def write(self, data: bytes) -> None:
        """Send *data*.  Raises NSQConnectionError, DeadlinePassed."""
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
        if isinstance(error, TimeoutError) and error.errno is None:  # ssl's own, or a signal handler's
            if self._pending is None or SYSTEM_CLOCK.now() < self.deadline - _EARLY:
                raise error
            raise DeadlinePassed from None
        if isinstance(error, NSQConnectionError):
            raise error
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            raise tls_failure(self.address, error) from error
        raise lost(self.address, error) from error

    @property
    def is_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self._pending is not None

    def is_quiet(self) -> bool:
        """Return whether nothing waits to be read: no byte, no end of the stream, no error.  Never blocks."""
        if _TCP_INFO is not None:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 136)
            if info[:1] == _ESTABLISHED and info[128:] == self.bytes_in.to_bytes(8, sys.byteorder):
                return True
        return not (self._poll.poll(0) or (self._pending is not None and self._pending()))

    def start_tls(self, tls: TLSOptions | ssl.SSLContext, host: str, early: bytes) -> bytes:
        """Do the TLS handshake; return b"".  Raises TLSError, CertificateError, DeadlinePassed."""
        if early:
            raise TLSError(self.address, "TLS failed: nsqd sent bytes before the handshake")
        context, name = context_of(tls, host)
        try:
            sock = context.wrap_socket(self._sock, server_hostname=name, do_handshake_on_connect=False)
            self._sock = sock
            sock.setblocking(False)  # so that the lock is not held while a step waits for nsqd
            while (events := _handshake_step(sock)) is not None:
                self._wait_for(events)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise handshake_failure(self.address, name, error) from error
        self._pending, self.send, self.receive = sock.pending, sock.send, sock.recv
        return b""

    def _wait_for(self, events: int) -> None:
        left = self.deadline - SYSTEM_CLOCK.now()
        poll = select.poll()
        poll.register(self._sock.fileno(), events)
        if left <= 0 or not poll.poll(left * 1000):
            raise DeadlinePassed

    def shut_down(self) -> None:
        """Have the thread that waits in this stream find its end; from another thread."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # that of SSLSocket would drop its TLS meanwhile

    def close(self, *, goodbye: bool = False) -> None:
        """Close; a second call does nothing.  With *goodbye* TLS tells nsqd that nothing more comes."""
        if goodbye and self._pending is not None:
            with suppress(OSError, ValueError):
                self._sock.settimeout(0)
                self._sock.unwrap()
        self._sock.close()


def _handshake_step(sock: ssl.SSLSocket) -> int | None:
    """Do what can be done of the handshake; return the event to wait for, None at its end."""
    try:
        with handshake_lock:
            sock.do_handshake()
    except ssl.SSLWantReadError:
        return select.POLLIN
    except ssl.SSLWantWriteError:
        return select.POLLOUT
    return None
