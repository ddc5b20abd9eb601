"""Listening sockets of the broker, in the loop of the broker's thread."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

import gevent

from gnsq_lite.broker.tcp import AcceptedConnection, LoopTimer, RealSocket

_READ = 1
_ACCEPTS_PER_TURN = 64
_PAUSE = 0.1


def listen(host: str, port: int, backlog: int | None = 1024) -> socket.socket:
    """Return a listening, non-blocking socket; without *backlog* one that only has the port.  Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = RealSocket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        if backlog is not None:
            listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    except BaseException:
        listener.close()
        raise
    return listener


class HeldPorts:
    """The ports of a server that is down: connections are refused, and no other process is given the port meanwhile."""

    def __init__(self) -> None:
        self._bound: list[socket.socket] = []

    def hold(self, host: str, ports: list[int]) -> None:
        """Take *ports* but do not listen; one that is taken already stays its owner's."""
        for port in ports:
            with contextlib.suppress(OSError):
                self._bound.append(listen(host, port, backlog=None))

    def free(self) -> None:
        """Give them back, just before the server listens again, or for good."""
        for bound in self._bound:
            bound.close()
        self._bound = []

    def sockets(self) -> list[socket.socket]:
        """Return the bound sockets, for a forked child to close."""
        return list(self._bound)


def accept(listener: socket.socket) -> tuple[socket.socket, str] | None:
    """Return a new connection and its peer's address, or None if there is none."""
    try:
        taken, address = listener.accept()
    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
        return None
    if type(taken) is not RealSocket:  # a patched process wraps it for a hub we do not want
        taken = RealSocket(fileno=taken.detach())
    taken.setblocking(False)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = address[:2]
    return taken, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TCPListener:
    """Accepts connections in the calling thread's loop, once it is started, and keeps count of them."""

    def __init__(self, host: str, port: int, limit: int, opened: Callable[[AcceptedConnection], None]) -> None:
        self.context: ssl.SSLContext | None = None
        self.refuses: Callable[[], bool] = lambda: False
        self.connections: dict[AcceptedConnection, None] = {}
        self._limit, self._opened = limit, opened
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._loop: Any = gevent.get_hub().loop
        self._accepts = self._loop.io(self._socket.fileno(), _READ)
        self._pause = LoopTimer(self._loop)
        self._open = True

    def start(self) -> None:
        """Accept who waits, and who comes."""
        self._accepts.start(self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if not self._open:
                return
            try:
                taken = accept(self._socket)
            except OSError:
                # out of file descriptors: the peer waits in the backlog, and the loop must not spin on it
                self._accepts.stop()
                self._pause.start(_PAUSE, self._resume)
                return
            if taken is None:
                return
            connection = AcceptedConnection(*taken, self._loop, self.context, self._closed)
            if self.refuses() or len(self.connections) >= self._limit:
                connection.reset()
                continue
            self.connections[connection] = None
            self._opened(connection)

    def _resume(self) -> None:
        if self._open:
            self._accepts.start(self._accept)

    def _closed(self, connection: AcceptedConnection) -> None:
        self.connections.pop(connection, None)

    def sockets(self) -> list[socket.socket]:
        """Return every open socket, for a forked child to close."""
        return [self._socket, *[connection.socket for connection in self.connections]]

    def reset_all(self) -> None:
        """Reset every connection."""
        for connection in list(self.connections):
            connection.reset()

    def stop_accepting(self) -> None:
        """Close the port."""
        if self._open:
            self._open = False
            self._pause.stop()
            self._accepts.stop()
            self._accepts.close()
            self._socket.close()

    def close(self) -> None:
        """Close the port and every connection."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.drop()
