"""Opens the broker's listening sockets, and reserves the ports of a stopped server."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import gevent.socket
from gevent.monkey import get_original

#: The socket class of the standard library, even in a monkey-patched process.
RealSocket: type[socket.socket] = get_original("socket", "socket")


def listen(host: str, port: int) -> Any:
    """Open a listening socket for a gevent server.  Raises OSError."""
    bound = _bound(host, port)
    bound.listen(1024)
    return gevent.socket.socket(bound.family, bound.type, fileno=bound.detach())


def _bound(host: str, port: int) -> socket.socket:
    bound = RealSocket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return bound


class ReservedPorts:
    """Ports of a stopped server.  A reserved port refuses connections, and no other process can bind it."""

    def __init__(self) -> None:
        self._bound: list[socket.socket] = []

    def reserve(self, host: str, ports: list[int]) -> None:
        """Bind *ports* without listening.  Skip a port that another process has bound."""
        for port in ports:
            with contextlib.suppress(OSError):
                self._bound.append(_bound(host, port))

    def release(self) -> None:
        """Release the ports, because the server listens again or the broker stops."""
        for bound in self._bound:
            bound.close()
        self._bound = []

    def sockets(self) -> list[socket.socket]:
        """Return the bound sockets.  A forked child closes its copies."""
        return list(self._bound)
