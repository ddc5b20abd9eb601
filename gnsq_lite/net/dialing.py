"""From a host name to a connected socket, in a loop or in a thread that blocks.

A name is resolved anew for each attempt and may have several addresses.  One of them may drop what is sent to it, a
firewall's way, and never answer: it gets only its share of the time, so that those behind it are tried as well.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey
from gevent.socket import getaddrinfo

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectError, ConnectTimeout
from gnsq_lite.net.loop import Loop
from gnsq_lite.options import format_address

_socket: Any = monkey.get_original("socket", "socket")

#: Seconds an address gets at least, where there is twice as much left: a lost SYN is sent again after one.
SANE_SHARE = 2.0

_WRITE = 2
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def dial(loop: Loop, host: str, port: int, timeout: float) -> Any:
    """Resolve *host* again, try its addresses in turn, IPv6 and IPv4, and return a connected socket.

    Waits at most *timeout* seconds in all (CONN-5), for each address the :func:`share` of what is left.  Raises
    ConnectError, ConnectTimeout.
    """
    address = format_address((host, port))
    end = SYSTEM_CLOCK.now() + timeout
    tried = gevent.Timeout(timeout)
    tried.start()
    try:
        return _dial_each(loop, _resolve(host, port, address, getaddrinfo), address, end)
    except gevent.Timeout as expired:
        if expired is not tried:
            raise
        raise ConnectTimeout(address, f"no connection within {timeout:g} s") from None
    finally:
        tried.close()


def dial_blocking(host: str, port: int, timeout: float) -> Any:
    """Do the same in a thread without a loop, which blocks; the system resolves the name, and nothing bounds that."""
    address = format_address((host, port))
    end = SYSTEM_CLOCK.now() + timeout
    found = _resolve(host, port, address, socket.getaddrinfo)
    last: OSError | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.001, share(end - SYSTEM_CLOCK.now(), len(found) - index)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(target)
            _check_peer(sock, target)
            return sock
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
    raise _not_connected(address, last, timeout) from last


def share(left: float, addresses: int) -> float:
    """Return the seconds that the next of so many addresses gets of what is *left*.

    That is an equal part, as in Go's dialer, but not less than SANE_SHARE, nor than half where there is less than two
    of those: some time is always kept for the rest.
    """
    return left if addresses == 1 else max(left / addresses, min(SANE_SHARE, left / 2))


def _resolve(host: str, port: int, address: str, look_up: Callable[..., Any]) -> list[Any]:
    try:
        return list(look_up(host, port, 0, socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        hint = "if nsqd announces a name only it knows, map it with address_map"
        raise ConnectError(address, f"host {host!r} does not resolve ({said}); {hint}") from error


def _dial_each(loop: Loop, found: list[Any], address: str, end: float) -> Any:
    last: OSError | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        limit = gevent.Timeout(max(0.0, share(end - SYSTEM_CLOCK.now(), len(found) - index)))
        if index < len(found) - 1:  # the last one's time ends with that of the whole
            limit.start()
        try:
            return _dial_one(loop, family, kind, protocol, target)
        except OSError as error:
            last = error
        except gevent.Timeout as expired:
            if expired is not limit:
                raise
            last = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        finally:
            limit.close()
    raise _not_connected(address, last) from last


def _not_connected(address: str, last: OSError | None, timeout: float | None = None) -> ConnectError:
    if timeout is not None and isinstance(last, TimeoutError):
        return ConnectTimeout(address, f"no connection within {timeout:g} s")
    why = (last.strerror or str(last)) if last is not None else "no address"
    return ConnectError(address, f"cannot connect: {why}")


def _check_peer(sock: Any, target: Any) -> None:
    """Raise OSError for a port of this host's own range that was connected to itself: nobody listens there."""
    if sock.getsockname() == target:
        raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _dial_one(loop: Loop, family: int, kind: int, protocol: int, target: Any) -> Any:
    sock = _socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failed = sock.connect_ex(target)
        if failed in _IN_PROGRESS:
            watcher = loop.hub.loop.io(sock.fileno(), _WRITE)
            try:
                loop.hub.wait(watcher)
            finally:
                watcher.close()
            failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
        _check_peer(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock
