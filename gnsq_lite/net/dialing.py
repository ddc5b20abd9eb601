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

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectError, NSQConnectionError
from gnsq_lite.net.loop import WRITE, resolve, time_limit, wait_for_io
from gnsq_lite.net.os_threads import native
from gnsq_lite.options import Address, format_address

_socket: Any = native("socket", "socket")

#: Seconds an address gets at least, where there is twice as much left: a lost SYN is sent again after one.
SANE_SHARE = 2.0

_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def dial(host: str, port: int, timeout: float) -> Any:
    """Resolve *host* again, try its addresses in turn, IPv6 and IPv4, and return a connected socket; in a greenlet.

    Waits at most *timeout* seconds in all (CONN-5), for each address the :func:`share` of what is left.  Raises
    ConnectError.
    """

    def look_up(*name: Any) -> Any:
        with time_limit(timeout, _timed_out(format_address((host, port)), timeout)):
            return resolve(*name)

    def connect(sock: Any, target: Any, seconds: float) -> None:
        sock.setblocking(False)
        with time_limit(seconds, TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))):
            failed = sock.connect_ex(target)
            if failed in _IN_PROGRESS:
                wait_for_io(sock.fileno(), WRITE)
                failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))

    return _dial(_socket, look_up, connect, (host, port), timeout)


def dial_blocking(host: str, port: int, timeout: float) -> Any:
    """Do the same in a thread without a loop, which blocks; the system resolves the name, and nothing bounds that."""

    def connect(sock: Any, target: Any, seconds: float) -> None:
        sock.settimeout(max(0.001, seconds))
        sock.connect(target)

    return _dial(socket.socket, socket.getaddrinfo, connect, (host, port), timeout)


def _dial(
    make_socket: Callable[..., Any],
    look_up: Callable[..., Any],
    connect: Callable[[Any, Any, float], None],
    host_port: Address,
    timeout: float,
) -> Any:
    """Return the first socket that *connect*, called with it, an address and seconds, connects.

    Raises ConnectError.
    """
    address = format_address(host_port)
    end = SYSTEM_CLOCK.now() + timeout
    found = _resolve(*host_port, address, look_up)
    last: OSError | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        sock = make_socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connect(sock, target, share(end - SYSTEM_CLOCK.now(), len(found) - index))
            if sock.getsockname() == target:  # a port of this host's own range, connected to itself: nobody listens
                raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            return sock
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
    if isinstance(last, TimeoutError):
        raise _timed_out(address, timeout) from last
    why = (last.strerror or str(last)) if last is not None else "no address"
    raise ConnectError(address, f"cannot connect: {why}") from last


def _timed_out(address: str, seconds: float) -> ConnectError:
    return ConnectError(address, f"no connection within {seconds:g} s")


def share(left: float, addresses: int) -> float:
    """Return the seconds that the next of so many addresses gets of what is *left*.

    That is an equal part, as in Go's dialer, but not less than SANE_SHARE, nor than half where there is less than two
    of those: some time is always kept for the rest.
    """
    return left if addresses == 1 else max(left / addresses, min(SANE_SHARE, left / 2))


def _resolve(host: str, port: int, address: str, look_up: Callable[..., Any]) -> list[Any]:
    try:
        return list(look_up(host, port, 0, socket.SOCK_STREAM))
    except NSQConnectionError:
        raise
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        hint = "if nsqd announces a name only it knows, map it with address_map"
        raise ConnectError(address, f"host {host!r} does not resolve ({said}); {hint}") from error
