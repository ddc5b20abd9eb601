"""A client's connection, with TLS and compression.  One greenlet reads, and a second greenlet sends queued bytes."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import gevent.event
from gevent import ssl

from gnsq_lite.broker.codecs import Codec, CodecError, codec_for
from gnsq_lite.broker.tls import info_of

_READ_SIZE = 1 << 14  # as in nsqd: further bytes stay in the kernel, which sends RST if close() finds unread bytes
_RESET = struct.pack("ii", 1, 0)
_HANDSHAKE_TIMEOUT = 5.0  # nsqd/client_v2.go:606 @v1.3.0


class Connection:
    """An accepted connection.  Only read(), chunks(), start_tls() and the wait methods block."""

    def __init__(self, sock: Any, address: tuple[Any, ...]) -> None:
        host, port = address[:2]
        self.remote_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.tls_info: dict[str, Any] = {}
        #: Seconds after which a client that reads no bytes is disconnected.
        self.write_timeout = 30.0
        #: Called when all bytes were sent.
        self.on_drained: Callable[[], None] = lambda: None
        #: Called once after the connection was closed or lost.
        self.on_closed: Callable[[], None] = lambda: None
        self._sock = sock
        self._codec: Codec | None = None
        self._received = b""  # compressed bytes that arrived together with the last uncompressed command
        self._to_send: deque[tuple[float, bytes]] = deque()
        self._unsent = 0
        self._changed, self._drained = gevent.event.Event(), gevent.event.Event()
        self._drained.set()
        self._is_tls = self._in_handshake = self._ending = self._gone = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writer = gevent.spawn(self._write)

    @property
    def socket(self) -> Any:
        """The socket.  A forked child closes its copy."""
        return self._sock

    # -- input ------------------------------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Receive at most *size* bytes, or return b"" at the end of the stream.  Raises OSError."""
        data: bytes = self._sock.recv(size)
        return data

    def chunks(self) -> Iterator[bytes]:
        """Yield the received and decompressed bytes until the peer's stream ends.  Raises OSError, CodecError."""
        while not self._ending and not self._gone:
            data, self._received = self._received, b""
            data = data or self.read(_READ_SIZE)
            if not data:
                return
            for piece in (data,) if self._codec is None else self._codec.decode(data):
                if not self._ending:
                    yield piece

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the server's side of the TLS handshake.  If it fails, close the connection and raise OSError."""
        self.wait_until_drained()
        self._is_tls = self._in_handshake = True
        try:
            with gevent.Timeout(_HANDSHAKE_TIMEOUT, OSError("no TLS handshake in time")):
                # wrap_socket() takes over the descriptor; from here on only the TLS socket can be reset or closed.
                self._sock = sock = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
                sock.do_handshake()
        except BaseException:
            self.drop()
            raise
        self.tls_info = info_of(self._sock)
        self._in_handshake = False
        self._changed.set()

    def start_compression(self, kind: str, level: int, received: bytes) -> None:
        """Use "snappy" or "deflate" in both directions from now on.  *received* is compressed input to decode first."""
        self._codec, self._received = codec_for(kind, level), received

    # -- output -----------------------------------------------------------------------------------------------------

    def send(self, data: bytes, delay: float = 0.0) -> None:
        """Send *data* after *delay* seconds, without blocking.  The writing greenlet sends remaining bytes."""
        if self._gone or self._ending or not data:
            return
        if self._codec is not None:
            data = self._codec.encode(data)
        if not (self._unsent or delay or self._is_tls):  # gevent's TLS send() would block
            data = self._send_now(data)
            if not data:
                return
        self._to_send.append((time.monotonic() + delay if delay else 0.0, data))
        self._unsent += len(data)
        self._drained.clear()
        self._changed.set()

    def _send_now(self, data: bytes) -> bytes:
        """Send as many bytes as the socket buffer accepts, and return the rest."""
        try:
            return data[self._sock.send(data, 0, 0.0) :]
        except BlockingIOError:
            return data
        except OSError:
            self.drop()
            return b""

    def unsent(self) -> int:
        """Return how many bytes are queued."""
        return self._unsent

    def wait_until_drained(self) -> None:
        """Wait until all bytes are sent, or the connection is closed or lost."""
        self._drained.wait()

    def _write(self) -> None:
        try:
            while not self._gone:
                if self._to_send and not self._in_handshake:
                    self._send_next()
                elif self._ending:
                    return
                else:
                    self._changed.clear()
                    self._changed.wait()
        except OSError:
            pass  # the peer has disconnected, or reads no bytes
        finally:
            self.drop()

    def _send_next(self) -> None:
        due, data = self._to_send.popleft()
        if due:
            gevent.sleep(max(due - time.monotonic(), 0.0))
        view = memoryview(data)
        while view:
            with gevent.Timeout(self.write_timeout, OSError("the peer does not read")):
                sent = self._sock.send(view)
            view = view[sent:]
            self._unsent -= sent
        if not self._to_send and not self._gone:
            self._drained.set()
            self.on_drained()

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self, *, reset: bool = False) -> None:
        """Close after all bytes are sent.  If *reset* is true, close with RST."""
        if reset and not self._gone:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._ending = True
        self._changed.set()

    def wait_until_closed(self) -> None:
        """Wait until the connection is closed."""
        self._writer.join()

    def reset(self) -> None:
        """Reset the connection at once (RST), as after a crash or a network failure."""
        if not self._gone:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.drop()

    def drop(self) -> None:
        """Close at once, and drop queued bytes."""
        if self._gone:
            return
        self._gone = True
        self._to_send.clear()
        self._unsent = 0
        self._sock.close()
        self._changed.set()
        self._drained.set()
        self.on_closed()


__all__ = ["CodecError", "Connection"]
