"""Resolves a host name and connects a socket, in a greenlet or in a blocking thread.

A name may have several addresses, and a firewall may drop the packets to one of them.  Therefore each address gets only
a part of the time limit.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ConnectError, NSQConnectionError, NSQError
from gnsq_lite.net.loop import WRITE, resolve, time_limit, wait_for_io
from gnsq_lite.net.os_threads import native
from gnsq_lite.options import format_address

_socket: Any = native("socket", "socket")
_getaddrinfo: Any = native("socket", "getaddrinfo")

#: Errors of this process or machine.  They say nothing about the nsqd.
_LOCAL = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def is_system_error(error: BaseException) -> bool:
    """Return whether the system raised *error*: a MemoryError, or an OSError with errno.

    An exception of a signal handler, such as a TimeoutError without errno, must reach the program.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and isinstance(error.errno, int))


def is_local(error: NSQError) -> bool:
    """Return whether a connection failed because this process or machine lacks descriptors or memory."""
    cause = error.__cause__
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _LOCAL)


def connect_error(address: str, cause: BaseException | None) -> ConnectError:
    """Return the error for a connection that could not be opened because of *cause*, an error of the system."""
    why = "no address" if cause is None else getattr(cause, "strerror", None) or str(cause) or "out of memory"
    error = ConnectError(address, f"cannot connect: {why}")
    error.__cause__ = cause
    return error


def dial(host: str, port: int, timeout: float, *, blocks: bool = False) -> Any:
    """Resolve *host*, try its addresses one after the other, and return a connected non-blocking socket.

    Each address gets an equal part of the time that is left of *timeout* seconds.  If *blocks* is true, the thread
    blocks, and resolving the name may take longer than *timeout*.  Otherwise only the greenlet waits, and *timeout*
    includes resolving the name (CONN-5).  Raises ConnectError.
    """
    address, ends = format_address((host, port)), SYSTEM_CLOCK.now() + timeout
    timed_out = ConnectError(address, f"no connection within {timeout:g} s")
    if blocks:
        found = _resolve(host, port, address, socket.getaddrinfo)
    else:
        with time_limit(timeout, timed_out):
            found = _resolve(host, port, address, resolve)
    last: BaseException | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        sock = None
        try:
            sock = _socket(family, kind, protocol)  # fails without IPv6 in the kernel, or without a free descriptor
            seconds = (ends - SYSTEM_CLOCK.now()) / (len(found) - index)
            _connect(sock, target, seconds, _poll if blocks else wait_for_io)
            return sock
        except BaseException as error:
            if sock is not None:
                sock.close()
            if not is_system_error(error):
                raise
            last = error
    if isinstance(last, TimeoutError):
        raise timed_out from last
    raise connect_error(address, last)


def _connect(sock: Any, target: Any, seconds: float, wait: Callable[[int, int, float], bool]) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    failed = sock.connect_ex(target)
    if failed in _IN_PROGRESS:
        is_over = wait(sock.fileno(), WRITE, seconds)
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if is_over else errno.ETIMEDOUT
    if not failed and sock.getsockname() == target:  # the socket has connected to itself
        failed = errno.ECONNREFUSED
    if failed:
        raise OSError(failed, os.strerror(failed))


def _poll(descriptor: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _resolve(host: str, port: int, address: str, look_up: Callable[..., Any]) -> list[Any]:
    try:  # an IP address needs no thread of gevent's resolver, and no thread can start while Python exits
        return list(_getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        pass
    try:
        return list(look_up(host, port, 0, socket.SOCK_STREAM))
    except NSQConnectionError:
        raise
    except (OSError, UnicodeError, RuntimeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        hint = "if nsqd announces a name that this host cannot resolve, map the name with address_map"
        raise ConnectError(address, f"host {host!r} does not resolve ({said}); {hint}") from error
