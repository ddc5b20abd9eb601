"""A TCP proxy that misbehaves on command.  It runs in native threads, monkey-patched or not."""

from __future__ import annotations

import socket as patched_socket
import struct
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from gevent import monkey

from tests.native import native_lock, start_native_thread

_socket: Any = monkey.get_original("socket", "socket")
_sleep: Any = monkey.get_original("time", "sleep")


class Tap(Protocol):
    """Hears one connection, in native threads.

    What goes to nsqd, just before; what nsqd sent, passed on or not; and how much of it is passed on, just before.
    """

    def up(self, data: bytes) -> None:
        """Take what goes to nsqd."""

    def down(self, data: bytes) -> None:
        """Take what comes from nsqd."""

    def passed(self, count: int) -> None:
        """Hear that so many bytes more go on to the client."""


#: Stands between a client and the proxy: of (the client's connection, nsqd's, the tap) it makes what is to be pumped in
#: place of the client's.  It may wait, raises OSError or ValueError where it comes to nothing.
Front = Callable[[Any, Any, "Tap | None"], Any]


class Proxy:
    """Forwards connections to *target* ("host:port") until a fault is set.

    Faults: ``reset`` all (RST), ``black_hole`` (take bytes, forward none), ``delay`` per chunk, ``dribble`` (one byte
    at a time), ``cut_after`` (close after so many bytes from nsqd), ``lose`` (cut a connection at a command, which does
    not get through), ``refuse`` new connections, ``half_open`` (forget the connections to nsqd, keep those to the
    client).
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = _socket()
        self._listener.setsockopt(patched_socket.SOL_SOCKET, patched_socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.refusing = False
        self.holding = False
        self.delay = 0.0
        self.chunk = 65536
        #: Close a connection after so many bytes from nsqd; None: never.
        self.cut_after: int | None = None
        #: Makes the listener of each connection.
        self.tap: Callable[[], Tap] | None = None
        #: Speaks with a new client in nsqd's place, in a native thread, and closes when it returns; None: nsqd does.
        self.instead: Callable[[Any], None] | None = None
        self.front: Front | None = None
        self._losing = b""
        self._losses = 0
        self._pairs: list[tuple[Any, Any]] = []
        self._lock = native_lock()
        self._closed = False
        start_native_thread("proxy", self._accept)

    def _accept(self) -> None:
        while not self._closed:
            try:
                number, _ = self._listener._accept()  # accept() would make a socket of gevent's where it has patched
            except OSError:
                return
            client = _socket(fileno=number)
            if self.refusing:
                _abort(client)
                continue
            if self.instead is not None:
                self.connections += 1
                start_native_thread("proxy-instead", partial(_speak, self.instead, client))
                continue
            server = _socket()
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            for sock in (client, server):
                sock.setsockopt(patched_socket.IPPROTO_TCP, patched_socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._pairs.append((client, server))
            if self._closed:  # __exit__() may have cut the others before this one was among them
                self.reset()
                return
            start_native_thread("proxy-up", partial(self._serve, client, server))

    def _serve(self, client: Any, server: Any) -> None:
        tap = self.tap() if self.tap is not None else None
        if self.front is not None:
            try:
                client = self.front(client, server, tap)
            except (OSError, ValueError):
                _shut(client, server)
                return
        start_native_thread("proxy-down", partial(self._pump, server, client, True, tap))
        self._pump(client, server, False, tap)

    def _pump(self, source: Any, sink: Any, from_nsqd: bool, tap: Tap | None) -> None:
        passed = 0
        swallowed = False  # from then on nothing passes: a stream of TCP has no gaps
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if tap is not None and from_nsqd:
                    tap.down(data)
                swallowed = swallowed or self.holding
                if swallowed:
                    continue
                if not from_nsqd and self._losses and self._losing in data:
                    self._losses -= 1
                    break
                if tap is not None and not from_nsqd:
                    tap.up(data)
                if self.delay:
                    _sleep(self.delay)
                limit = self.cut_after if from_nsqd else None
                if limit is not None and passed + len(data) > limit:
                    self._send(sink, data[: max(0, limit - passed)], tap if from_nsqd else None)
                    break
                passed += len(data)
                self._send(sink, data, tap if from_nsqd else None)
        except OSError:
            pass
        if self.holding or swallowed:
            return  # the other side is not closed
        _shut(source, sink)

    def _send(self, sink: Any, data: bytes, tap: Tap | None) -> None:
        size = self.chunk
        for at in range(0, len(data), size):
            part = data[at : at + size]
            if tap is not None:
                tap.passed(len(part))
            sink.sendall(part)

    def reset(self) -> None:
        """Cut every connection with RST."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for client, server in pairs:
            _abort(client)
            _abort(server)

    def lose(self, command: bytes, times: int) -> None:
        """Cut so many connections when the client sends *command*; nsqd gets nothing of it."""
        self._losing, self._losses = command, times

    def half_open(self) -> None:
        """nsqd's side is gone without a word to the client: as after a power cut."""
        self.holding = True
        with self._lock:
            pairs = list(self._pairs)
        for _, server in pairs:
            _abort(server)

    def clear(self) -> None:
        """End every fault for new connections."""
        self.refusing = self.holding = False
        self.instead = None
        self.delay, self.chunk, self.cut_after = 0.0, 65536, None

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            self._listener.shutdown(patched_socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self.reset()


def _speak(instead: Callable[[Any], None], client: Any) -> None:
    try:
        instead(client)
    except OSError:
        pass
    finally:
        client.close()


def _shut(*socks: Any) -> None:
    for sock in socks:
        try:
            sock.shutdown(patched_socket.SHUT_RDWR)
        except OSError:
            pass


def _abort(sock: Any) -> None:
    try:
        sock.setsockopt(patched_socket.SOL_SOCKET, patched_socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(patched_socket.SHUT_RDWR)
    except OSError:
        pass
    try:
        sock.close()
    except OSError:
        pass
