"""TCP streams with optional TLS: the stream of the loop, and the base class of all streams.

TLS is in :mod:`gnsq_lite.net.tls`, the blocking stream in :mod:`gnsq_lite.net.blocking_connection`.  Errors are
NSQErrors that name the nsqd.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gnsq_lite._core import exchange, is_accelerated
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectionLost, NSQConnectionError, NSQError, TLSError
from gnsq_lite.net.loop import READ, WRITE, Loop, current_greenlet
from gnsq_lite.net.os_threads import native
from gnsq_lite.net.tls import TLSLayer
from gnsq_lite.options import TLSOptions

#: Maximum bytes of one read.  Sizes from 16 KiB to 1 MiB are equally fast.
READ_SIZE = 64 * 1024

#: Seconds that a thread waits for bytes in :meth:`Stream.exchange`.
MOMENT = 0.005
#: Maximum bytes that :meth:`Stream.exchange` returns: the size of the buffer in ``_core/exchange.c``.
EXCHANGE_SIZE = 4096

#: Flag for a send or recv that does not block.
DONTWAIT = getattr(socket, "MSG_DONTWAIT", 0)
_FLAGS = (DONTWAIT,)
#: Poll event: the peer has closed its sending side.  Unread bytes may remain.
_HANGUP = getattr(select, "POLLRDHUP", select.POLLHUP)


def lost(address: str, error: OSError) -> NSQConnectionError:
    """Convert an OSError of an open connection to ConnectionLost.  Return an NSQConnectionError unchanged."""
    if isinstance(error, NSQConnectionError):
        return error
    return ConnectionLost(address, f"connection lost: {error.strerror or error}")


class ByteStream:
    """An open TCP connection.  Methods may block.  The caller limits the time."""

    def __init__(self, sock: Any, address: str) -> None:
        self._sock = sock
        self.address = address
        self.bytes_in = self.bytes_out = 0
        self.tls: TLSLayer | None = None

    def read(self) -> bytes:
        """Wait for bytes, and return at least one decrypted byte.  Raises NSQConnectionError."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Encrypt and send *data*.  Raises NSQConnectionError."""
        raise NotImplementedError

    def send_raw(self, data: bytes) -> None:
        """Send *data* without encryption.  Raises NSQConnectionError."""
        raise NotImplementedError

    def start_tls(self, tls: TLSOptions | ssl.SSLContext, host: str, early: bytes = b"") -> bytes:
        """Do the TLS handshake.  Return the plain text that arrived in its last read, often b"".

        *early* is the bytes that were read after the last plain frame.  Raises TLSError, CertificateError.
        """
        layer = TLSLayer(tls, host, self.address, early)
        layer.shake_hands(self.read, self.send_raw)
        self.tls = layer
        return self._decrypt(layer, b"")

    def decrypt(self, data: bytes) -> bytes:
        """Count and decrypt *data* from the socket.  Raises TLSError, and ConnectionLost if *data* is b"" (EOF)."""
        if not data:
            raise ConnectionLost(self.address, "connection closed by nsqd")
        self.bytes_in += len(data)
        return data if self.tls is None else self._decrypt(self.tls, data)

    def _decrypt(self, tls: TLSLayer, data: bytes) -> bytes:
        plain = tls.decrypt(data)
        outgoing = tls.take_outgoing()
        if outgoing:
            self.send_raw(outgoing)
        return plain

    def _send_close_notify(self) -> None:
        """Send TLS close_notify."""
        if self.tls is not None:
            with suppress(OSError):
                self._sock.send(self.tls.close_notify(), DONTWAIT)


class Stream(ByteStream):
    """A stream in the loop.  ``read`` blocks its greenlet.  ``write`` never blocks: it keeps the unsent bytes."""

    def __init__(self, loop: Loop, sock: Any, address: str) -> None:
        super().__init__(sock, address)
        self._loop = loop
        self.closed: NSQConnectionError | None = None
        self._has_ended = False
        #: Sends bytes in the calling thread.  :meth:`sent_beside_loop` must follow, also after an error.
        self.send: Callable[[bytes, int], int] = sock.send
        #: Number of unsent bytes.
        self.unsent = 0
        #: Monotonic time at which the socket stopped accepting bytes, or None.
        self.stuck_since: float | None = None
        self._chunks: deque[bytes | memoryview] = deque()
        self._waiting: Any = None
        self._ending = False
        #: Whether to continue reading if a write finds the connection broken, because nsqd's error frame may be unread.
        self.reads_after_write_error = False
        #: Called in the hub when all bytes that a write left unsent are sent.  It must not block.
        self.on_drained: Callable[[], None] | None = None
        self._readable: Any = loop.io(sock.fileno(), READ)
        self._writable: Any = loop.io(sock.fileno(), WRITE)
        self._take: Callable[[bytes], bool] = lambda data: False
        #: What a thread has read, or the error of its read, until the loop or the thread handles it.
        self._unread: list[Any] = []
        self._number = sock.fileno()
        self._may_block = False

    # -- reading

    def read(self) -> bytes:
        """Wait for bytes, decrypt them, and return them.  Raises NSQConnectionError."""
        while self.closed is None:
            if not self._readable.active:
                self._loop.start(self._readable, self._on_readable)
            self._waiting = current_greenlet()
            try:
                given = self._loop.suspend()
            finally:
                self._waiting = None
            if isinstance(given, NSQError):
                raise given
            if given:
                return given  # type: ignore[no-any-return]
        raise self.closed

    def _on_readable(self) -> None:
        """Read the socket in the hub.  Pass the bytes or the error to the greenlet that waits in :meth:`read`."""
        if self._waiting is None or not self._readable.active:
            self._readable.stop()  # an active watcher would call this again and again until a greenlet reads
            return
        given: Any  # bytes or NSQError
        try:
            given = self._unread.pop(0) if self._unread else self._sock.recv(READ_SIZE, DONTWAIT)
            if isinstance(given, OSError):
                raise given
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            given = lost(self.address, error)
        else:
            try:
                given = self.decrypt(given)
                if self.tls is not None and self.tls.ended is not None:
                    self._loop.soon(self.close, self.tls.ended)
                if not given or self._take(given):
                    return
            except NSQError as error:
                given = error
        waiting, self._waiting = self._waiting, None
        if waiting is not None:  # it is None if *take* has closed the stream
            waiting.switch(given)

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """Set the callback *take*, which must not block.

        While a greenlet waits in :meth:`read`, the hub calls take(data) for each read of the socket.  If take() returns
        False, read() returns *data*.  If take() raises an NSQError, read() raises that error.
        """
        self._take = take

    def let_threads_read(self) -> bool:
        """Stop to read in the loop.  Return False if no greenlet waits in :meth:`read`."""
        if self._waiting is None or self._unread:
            return False
        if not self._may_block:  # the loop's own calls have the flag DONTWAIT
            self._may_block = True
            self._sock.setblocking(True)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(MOMENT * 1e6)))
        self._readable.stop()
        return True

    def read_in_loop(self) -> None:
        """Read in the loop again, first what a thread has read and has not taken."""
        if self.closed is None and self._waiting is not None and not self._readable.active:
            self._loop.start(self._readable, self._on_readable)
            if self._unread:
                self._loop.soon(self._on_readable)

    def has_ended(self) -> bool:
        """Return whether this side or the peer has closed the stream.  Never blocks."""
        if self.closed is not None:
            return True
        poll = native("select", "poll")()  # gevent's poll() would switch greenlets
        poll.register(self._sock.fileno(), _HANGUP)
        return bool(poll.poll(0))

    # -- writing

    def write(self, data: bytes) -> None:
        """Send *data* now, or when the socket accepts it.  Call this in the loop's thread.  After close, do nothing.

        A write error closes the stream, and :meth:`read` raises the error, unless ``reads_after_write_error`` is true.
        """
        if self.closed is not None:
            return
        try:
            data = data if self.tls is None else self.tls.encrypt(data)
        except TLSError as error:
            self.close(error)
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        """Send *data* without encryption, now or when the socket accepts it."""
        if self.closed is not None or not data:
            return
        self.unsent += len(data)
        if self._chunks:
            self._chunks.append(data)
            return
        self._push(data)

    def _push(self, data: bytes | memoryview) -> None:
        try:
            sent = self._sock.send(data, DONTWAIT)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            if not (self.reads_after_write_error and isinstance(error, ConnectionError)):
                self.close(lost(self.address, error))
                return
            self._chunks.appendleft(data)  # while _chunks is not empty, write() sends nothing
            self._writable.stop()
            return
        self.bytes_out += sent
        self.unsent -= sent
        if sent < len(data):
            self._chunks.appendleft(memoryview(data)[sent:])
            if sent or self.stuck_since is None:
                self.stuck_since = SYSTEM_CLOCK.now()
            if not self._writable.active:
                self._loop.start(self._writable, self._on_writable)

    def _on_writable(self) -> None:
        if self._chunks:
            self._push(self._chunks.popleft())
            return
        self._writable.stop()
        self.stuck_since = None
        if self._ending:
            self._shut(socket.SHUT_WR)
        if self.on_drained is not None:
            self.on_drained()

    # -- sending beside the loop

    def sent_beside_loop(self, data: bytes, sent: int) -> None:
        """Count *sent* bytes of *data* that a thread has sent with :attr:`send`, and let the loop send the rest.

        No bytes may have been unsent, no other thread may send, and TLS must be off.
        """
        self.bytes_out += sent
        if sent < len(data):
            self.unsent += len(data) - sent
            self._chunks.append(data[sent:])
            self._loop.call_soon(self._send_rest)

    def exchange(self, data: bytes, counts: list[int]) -> bytes:
        """Send *data* in a thread, and return what arrives within about MOMENT seconds, perhaps b"".

        Adds the number of sent bytes to *counts*.  No bytes may have been unsent, no other thread may send or read, and
        TLS must be off.  The loop reads these bytes too, unless the thread calls :meth:`take_read`.
        """
        unread = self._unread
        try:
            if is_accelerated:
                exchange(self._number, data, counts, unread)
            else:
                counts.extend(map(self.send, (data,), _FLAGS))
                unread.extend(map(self._sock.recv, (READ_SIZE,)))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            unread.append(error)
        self.sent_beside_loop(data, counts[0] if counts else 0)
        return unread[-1] if unread and isinstance(unread[-1], bytes) else b""

    def take_read(self) -> None:
        """Count the bytes of :meth:`exchange`, which the calling thread handles."""
        self.bytes_in += len(self._unread.pop())

    def _send_rest(self) -> None:
        if self.closed is None and not self._writable.active:
            self.stuck_since = SYSTEM_CLOCK.now()
            self._loop.start(self._writable, self._on_writable)

    # -- the end

    def close(self, reason: NSQConnectionError) -> None:
        """Close.  :meth:`read` raises *reason*.  A second call does nothing.  Call it in the loop's thread."""
        if self.closed is None:
            self.closed = reason
        if not self._has_ended:  # an exception may have interrupted an earlier call
            self._end()

    def _end(self) -> None:
        if not self._chunks:
            self._send_close_notify()
        self._chunks.clear()
        self.unsent = 0
        self._release()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._loop.soon(waiting.switch)
        self._has_ended = True

    def end_reads(self) -> None:
        """End an :meth:`exchange` in another thread at once."""
        self._shut(socket.SHUT_RDWR)

    def shut_down(self) -> None:
        """Send the unsent bytes, then shut down writing.  Reading continues until EOF."""
        if self.closed is None:
            self._ending = True
            if not self._chunks:
                self._shut(socket.SHUT_WR)

    def _shut(self, how: int) -> None:
        with suppress(OSError):
            self._sock.shutdown(how)

    def abandon(self) -> None:
        """In a forked child, close the descriptor and send nothing, because the parent uses the connection."""
        if self.closed is None:
            self.closed = ConnectionLost(self.address, "belongs to the parent process")
            self._has_ended = True
            self._release()

    def _release(self) -> None:
        self._readable.close()
        self._writable.close()
        self._sock.close()
