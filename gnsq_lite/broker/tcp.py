"""A connection of the broker that never waits, driven by the loop of the broker's thread.

Reads and writes happen in the loop's callbacks: no greenlet per connection or message.  What is sent in one turn of the
loop goes out in one write.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gevent.monkey import get_original

from gnsq_lite.broker.codecs import Codec, CodecError, codec_for
from gnsq_lite.broker.tls import TLSLayer, problem_of

#: The socket class of the standard library, also where the process is monkey-patched.
RealSocket: type[socket.socket] = get_original("socket", "socket")

_READ_SIZE = 1 << 16
_HANDSHAKE_TIMEOUT = 5.0  # nsqd/client_v2.go:606 @v1.3.0
_READ, _WRITE = 1, 2


class ByteReceiver(Protocol):
    """What a connection hands its bytes to."""

    def receive(self, data: bytes) -> None:
        """Take decoded bytes."""

    def receive_end(self) -> None:
        """The peer has closed its side."""

    def sent(self) -> None:
        """All that was to be sent is with the system."""

    def lost(self) -> None:
        """The connection is gone."""


class LoopTimer:
    """A timer of the loop that frees what it took when it fires or is stopped."""

    __slots__ = ("_callback", "_loop", "_once", "_watcher")

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._watcher: Any = None
        self._once = True

    def start(self, seconds: float, callback: Callable[[], None], *, repeat: bool = False) -> None:
        """Call *callback* in *seconds*, or every *seconds*; an earlier start is forgotten."""
        self.stop()
        self._callback = callback
        self._once = not repeat
        self._watcher = self._loop.timer(max(seconds, 0.0), seconds if repeat else 0.0)
        self._watcher.start(self._fire)

    def _fire(self) -> None:
        if self._once:
            self.stop()
        self._callback()

    def stop(self) -> None:
        """Stop it; doing so again is harmless."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


class AcceptedConnection:
    """One accepted TCP connection: the :class:`~gnsq_lite.broker.ports.Transport` of a session."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        loop: Any,
        context: ssl.SSLContext | None,
        closed: Callable[[Any], None],
    ) -> None:
        self.remote_address = address
        self.tls_info: dict[str, Any] = {}
        self.receiver: ByteReceiver | None = None
        self.write_timeout = 30.0
        self._sock, self._loop, self._context, self._closed = sock, loop, context, closed
        self._backlog: deque[memoryview] = deque()
        self._unsent = 0
        self._tls: TLSLayer | None = None
        self._secured: Callable[[str | None], None] | None = None
        self._codec: Codec | None = None
        self._held = False
        self._ending = False
        self._gone = False
        self._reads = loop.io(sock.fileno(), _READ)
        self._writes = loop.io(sock.fileno(), _WRITE)
        self._timer = LoopTimer(loop)  # of the handshake, and later of the end
        self._stall = LoopTimer(loop)  # of a peer that takes nothing

    def start(self, receiver: ByteReceiver) -> None:
        """Begin to read for *receiver*."""
        self.receiver = receiver
        self._reads.start(self._readable)

    @property
    def socket(self) -> socket.socket:
        """The socket, for the one who must close it after a fork."""
        return self._sock

    # -- in ---------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.drop()
            return
        if data:
            self.take(data)
        elif self.receiver is not None:
            self._reads.stop()
            self.receiver.receive_end()

    def take(self, data: bytes) -> None:
        """Decode bytes from the network and hand them on."""
        try:
            if self._tls is None:
                self.decode(data)
            else:
                self._decrypt(self._tls, data)
        except (CodecError, ssl.SSLError, OSError):
            self.drop()
        except BaseException:
            self.drop()  # a bug of the broker: the loop reports it, and the client is not left to wait
            raise

    def decode(self, data: bytes) -> None:
        """Decompress *data*, where that was agreed, and hand it on."""
        if self.receiver is None or not data:
            return
        if self._codec is None:
            self.receiver.receive(data)
            return
        for piece in self._codec.decode(data):
            if self._ending or self._gone:
                return
            self.receiver.receive(piece)

    def _decrypt(self, tls: TLSLayer, data: bytes) -> None:
        tls.feed(data)
        if not tls.established and not self._handshake(tls):
            return
        while not self._gone and not self._ending:
            plain = tls.read()
            if plain is None:
                break
            if not plain:
                if self.receiver is not None:
                    self.receiver.receive_end()
                break
            self.decode(plain)
        self._transmit(tls.outgoing())

    def _handshake(self, tls: TLSLayer) -> bool:
        problem: str | None = None
        done = False
        try:
            done = tls.handshake()
        except ssl.SSLError as error:
            problem = problem_of(error)
        self._transmit(tls.outgoing())
        if done or problem is not None:
            self._timer.stop()
            secured, self._secured = self._secured, None
            if problem is None:
                self.tls_info = tls.info()
            else:
                self._tls = None  # as nsqd, tell the peer why in plain text
            if secured is not None:
                secured(problem)
        return done

    def hold(self, held: bool) -> None:
        """Read nothing from the peer while held."""
        if held != self._held and not self._gone and not self._ending:
            self._held = held
            if held:
                self._reads.stop()
            else:
                self._reads.start(self._readable)

    # -- layers -----------------------------------------------------------------------------------------------------

    def start_tls(self, rest: bytes, done: Callable[[str | None], None]) -> None:
        """Start TLS as a server, *rest* being what the peer sent of it; then call *done* with None or a problem."""
        if self._context is None:
            done("tls: no certificate")
            return
        self._tls = TLSLayer(self._context)
        self._secured = done
        self._timer.start(_HANDSHAKE_TIMEOUT, self.drop)
        if rest:
            self.take(rest)

    def start_compression(self, kind: str, level: int) -> None:
        """From here on "snappy" or "deflate", both ways."""
        self._codec = codec_for(kind, level)

    # -- out --------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send, or keep until the peer takes it."""
        if self._gone or self._ending:
            return
        if self._codec is not None:
            data = self._codec.encode(data)
        if self._tls is None:
            self._transmit(data)
        else:
            self._encrypt(self._tls, data)

    def _encrypt(self, tls: TLSLayer, data: bytes) -> None:
        try:
            self._transmit(tls.write(data))
        except ssl.SSLError:
            self.drop()

    def unsent(self) -> int:
        """Return how many bytes the peer has not taken yet."""
        return self._unsent

    def _transmit(self, data: bytes) -> None:
        if self._gone or not data:
            return
        view = memoryview(data)
        if not self._backlog:
            try:
                view = view[self._sock.send(view) :]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.drop()
                return
            if not view:
                return
            self._writes.start(self._writable)
            self._restart_stall()
        self._backlog.append(view)
        self._unsent += len(view)

    def _restart_stall(self) -> None:
        self._stall.start(self.write_timeout, self.drop)

    def _writable(self) -> None:
        backlog = self._backlog
        try:
            while backlog:
                count = self._sock.send(backlog[0])
                self._unsent -= count
                if count < len(backlog[0]):
                    backlog[0] = backlog[0][count:]
                    self._restart_stall()
                    return
                backlog.popleft()
        except (BlockingIOError, InterruptedError):
            self._restart_stall()
            return
        except OSError:
            self.drop()
            return
        self._writes.stop()
        self._stall.stop()
        if self._ending:
            self.drop()
        elif self.receiver is not None:
            self.receiver.sent()

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close once everything is sent.  As from nsqd, a peer that has sent what nobody read gets a reset."""
        if self._ending or self._gone:
            return
        self._ending = True
        self._reads.stop()
        if self._backlog:
            self._timer.start(self.write_timeout, self.drop)
        else:
            self.drop()

    def refuse(self, unread: int) -> None:
        """Close a connection of which *unread* bytes would be left: where there are some, with a reset."""
        if unread and not self._backlog:
            self.reset()
        else:
            self.close()

    def reset(self) -> None:
        """Close at once with a reset (RST), as a killed process or a broken network does."""
        if not self._gone:
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass
            self.drop()

    def drop(self) -> None:
        """Close at once."""
        if self._gone:
            return
        self._gone = True
        self._timer.stop()
        self._stall.stop()
        for watcher in (self._reads, self._writes):
            watcher.stop()
            watcher.close()
        self._backlog.clear()
        self._unsent = 0
        self._sock.close()
        self._closed(self)
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.lost()
