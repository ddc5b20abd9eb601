"""Listening sockets of the broker, and the ports of a server that is down."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import gevent.socket
from gevent.monkey import get_original

#: The socket class of the standard library, also where the process is monkey-patched.
RealSocket: type[socket.socket] = get_original("socket", "socket")


def listen(host: str, port: int) -> Any:
    """Return a listening socket for a gevent server.  Raises OSError."""
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


class HeldPorts:
    """The ports of a server that is down: connections are refused, and no other process is given the port meanwhile."""

    def __init__(self) -> None:
        self._bound: list[socket.socket] = []

    def hold(self, host: str, ports: list[int]) -> None:
        """Take *ports* but do not listen; one that is taken already stays its owner's."""
        for port in ports:
            with contextlib.suppress(OSError):
                self._bound.append(_bound(host, port))

    def free(self) -> None:
        """Give them back, just before the server listens again, or for good."""
        for bound in self._bound:
            bound.close()
        self._bound = []

    def sockets(self) -> list[socket.socket]:
        """Return the bound sockets, for a forked child to close."""
        return list(self._bound)
