"""How an open connection is lost, in the library's own errors."""

from __future__ import annotations

import select
from typing import Any

from gnsq_lite.errors import ConnectionLost, NSQConnectionError
from gnsq_lite.net.os_threads import native

_HANGUP = getattr(select, "POLLRDHUP", 0)
#: gevent's own would turn the loop.
_poll: Any = native("select", "poll") if _HANGUP else None


class DeliveryStalled(ConnectionLost):
    """nsqd refused a FIN or REQ, then delivered nothing although RDY allowed it: its in-flight count is too high."""


def lost(address: str, error: OSError) -> NSQConnectionError:
    """Return the library's error for one on an open connection, which may be it already."""
    if isinstance(error, NSQConnectionError):
        return error
    return ConnectionLost(address, f"connection lost: {error.strerror or error}")


def peer_has_closed(sock: Any) -> bool:
    """Look past what is there to be read; a system without POLLRDHUP cannot."""
    if _poll is None:
        return False
    poll = _poll()
    poll.register(sock.fileno(), _HANGUP)
    return bool(poll.poll(0))
