"""What a Writer knows of its nsqds: the loop and the publishing threads write it, and both read it (PUB-4).

Each fact is one attribute, or one set, that a single bytecode or method reads or writes.  Therefore no lock is needed,
and code that Python's garbage collector runs in the middle of a publish may publish too.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gnsq_lite.dialect import Endpoint
from gnsq_lite.options import Address

#: Seconds after which an nsqd with an unanswered publish is silent.
SILENT_AFTER = 1.0
#: Seconds for which threads do not use an nsqd after a failure, unless the loop connects to it earlier.
RETRY_AFTER = 5.0
#: Seconds between two checks whether the shared connections to an nsqd are silent.
_CHECK_EVERY = 0.1
#: Seconds of round trip above which an nsqd is far away, and below which it is near (:attr:`Nsqd.is_far`).  A thread
#: waits up to 5 ms for the GIL if other threads compute; the shortest round trip of each _DECIDE_EVERY seconds shows
#: the network.
_FAR, _NEAR, _DECIDE_EVERY = 0.01, 0.001, 1.0


class Connections:
    """The connections to one nsqd that threads share, at most *most*.

    Each connection has a place until it is closed, or until the garbage collector frees it because an exception has
    interrupted the thread that led it.
    """

    def __init__(self, most: int, queue: deque[Any], nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        #: The publishes that no connection has taken yet, the oldest first.
        self.queue = queue
        #: Connections that no thread leads.  The last one was used most recently and is used next.
        self.idle: deque[Any] = deque()
        #: The numbers of the places without a connection.
        self.free: deque[int] = deque(range(most - 1, -1, -1))
        #: For each place a weak reference to its connection, or a function that returns None.
        self._places: list[Callable[[], Any]] = [_nothing] * most

    def enter(self, connection: Any) -> Callable[[], object]:
        """Give *connection* a place, and return the function that frees it.  Raises IndexError if there is none."""
        number = self.free.pop()
        self._places[number] = weakref.ref(connection)
        leave = weakref.finalize(connection, self._leave, number)
        leave.atexit = False
        return leave

    def _leave(self, number: int) -> None:
        self._places[number] = _nothing
        self.free.append(number)

    def all(self) -> list[Any]:
        """Return the connections that are idle, in use, or being opened."""
        return [connection for each in self._places if (connection := each()) is not None]

    def is_led(self) -> bool:
        """Return whether a thread leads or opens a connection."""
        return len(self._places) > len(self.free) + len(self.idle)

    def take_idle(self) -> list[Any]:
        """Remove and return all idle connections, in order of use.  Other threads may take some at the same time."""
        taken: list[Any] = []
        while self.idle:
            try:
                taken.append(self.idle.popleft())
            except IndexError:
                break
        return taken

    def close_idle(self) -> None:
        """Close the idle connections."""
        for connection in self.take_idle():
            connection.close(close_notify=True)


def _nothing() -> None:
    return None


class Nsqd:
    """One nsqd of a Writer."""

    def __init__(self, endpoint: Endpoint, most: int, queues: tuple[deque[Any], deque[Any]]) -> None:
        self.endpoint = endpoint
        #: The connections of threads: for most publishes, and for single commands that are large.
        self.shared, self.large = (Connections(most, queue, self) for queue in queues)
        #: The nodes of the loop whose oldest publish is unanswered for too long, and Connections if this is true of a
        #: shared connection.
        self.silent: set[Any] = set()
        #: After a failure, the time until which publishes go to other nsqds; otherwise 0.0.
        self.failed_until = 0.0
        #: Whether the round trip is so long that a thread must not wait for a connection to become free, and whether it
        #: is so short that many threads should wait for one connection.
        self.is_far = self.is_near = False
        self.is_removed = False
        #: The shortest round trip since the last decision, and the time of the next decision.
        self.shortest, self.decide_at = float("inf"), 0.0
        self._check_at = 0.0

    def fail(self, now: float) -> None:
        """Let publishes go to other nsqds for RETRY_AFTER seconds."""
        self.failed_until = now + RETRY_AFTER

    def close_idle(self) -> None:
        """Close the idle connections of threads."""
        self.shared.close_idle()
        self.large.close_idle()

    def is_avoided(self, now: float) -> bool:
        """Return whether the nsqd is silent, or has failed in the last RETRY_AFTER seconds."""
        if now >= self._check_at:
            self._check_at = now + _CHECK_EVERY
            owed = [each.owes_since for each in (*self.shared.all(), *self.large.all()) if each.owes_since]
            (self.silent.add if owed and now - min(owed) > SILENT_AFTER else self.silent.discard)(Connections)
        return now < self.failed_until or bool(self.silent)

    def measured(self, seconds: float, now: float) -> None:
        """Note the round trip of a publish that had the connection for itself."""
        self.shortest = min(self.shortest, seconds)
        if now >= self.decide_at or self.shortest < _NEAR:
            self.is_far, self.is_near = self.shortest > _FAR, self.shortest < _NEAR
        if now >= self.decide_at:
            self.shortest, self.decide_at = float("inf"), now + _DECIDE_EVERY


class Nsqds:
    """The nsqds of one Writer.  Only the loop, or the Writer before it has a loop, adds and removes nsqds."""

    def __init__(self, most: int, *, takes_turns: bool) -> None:
        self._most, self._takes_turns = most, takes_turns
        self._queues: tuple[deque[Any], deque[Any]] = (deque(), deque())
        #: The nsqds that are in turn or have led a partition.
        self.known: dict[Address, Nsqd] = {}
        #: The nsqds that get publishes in turn.  All others get only publishes to the partitions that they lead.
        self.in_turn: tuple[Nsqd, ...] = ()
        self.turn = 0
        #: Whether any handshake of the Writer has succeeded, which proves that the options are right.
        self.proven = False

    def get(self, endpoint: Endpoint) -> Nsqd:
        """Return the nsqd of *endpoint*."""
        found = self.known.get((endpoint.host, endpoint.port))
        if found is None:
            address = endpoint.address
            queues = self._queues if self._takes_turns else (deque(), deque())
            found = self.known.setdefault(address, Nsqd(Endpoint(*address), self._most, queues))
        return found

    def add(self, endpoints: Iterable[Endpoint]) -> None:
        """Use *endpoints* in turn, in addition to the earlier endpoints."""
        self.in_turn = tuple(dict.fromkeys((*self.in_turn, *map(self.get, endpoints))))

    def remove(self, endpoints: Iterable[Endpoint]) -> list[Nsqd]:
        """Forget *endpoints*, and return their nsqds."""
        removed = [nsqd for each in endpoints if (nsqd := self.known.pop(each.address, None)) is not None]
        self.in_turn = tuple(each for each in self.in_turn if each not in removed)
        for nsqd in removed:
            nsqd.is_removed = True
        return removed

    def all(self) -> list[Nsqd]:
        """Return all nsqds."""
        return list(self.known.values())

    def first(self, now: float) -> Nsqd | None:
        """Return the next nsqd in turn, or None if it is silent or has failed."""
        nsqds = self.in_turn
        self.turn = turn = self.turn + 1
        if not nsqds:
            return None
        nsqd = nsqds[turn % len(nsqds)]
        is_usable = now >= nsqd.failed_until and (len(nsqds) == 1 or not nsqd.is_avoided(now))
        return nsqd if is_usable else None

    def usable(self, now: float) -> list[Nsqd]:
        """Return the nsqds that a thread may try, beginning with the one of the last :meth:`first`.

        Silent nsqds are used only if no other nsqd can be used, and failed nsqds never.
        """
        nsqds = self.in_turn
        at = self.turn % len(nsqds) if nsqds else 0
        nsqds = nsqds[at:] + nsqds[:at]
        return [each for each in nsqds if not each.is_avoided(now)] or [
            each for each in nsqds if now >= each.failed_until
        ]
