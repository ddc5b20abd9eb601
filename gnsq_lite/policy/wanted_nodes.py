"""Which nsqds to connect to, and which to forget (CONN-4, DISC-1, DISC-2, DISC-5, DISC-6).

A node is wanted because an nsqlookupd lists it.  Nodes that were given directly are not the business of this module:
their owner tries them again (:mod:`.reconnect`).  A found node that is connected stays so when no nsqlookupd lists it
any more: nsqd knows better.  One that is disconnected is tried again when a later poll lists it, and else forgotten.

An nsqlookupd that fails leaves everything as it was: its last good answer stands (DISC-6).  That answer is no news, so
nothing is connected to because of it, but in a round in which *all* fail: then the last good answers are the best
there is, and what they list and is disconnected is tried once.  Without that, an nsqd that restarts during an outage
of nsqlookupd would stay without consumers until its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnsq_lite.clock import Clock

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Connect(Generic[K]):
    """Connect to *key*, which the nsqlookupd *source* lists."""

    key: K
    source: str


@dataclass(frozen=True, slots=True)
class Forget(Generic[K]):
    """Drop what is kept about *key*, which is neither connected nor listed."""

    key: K


@dataclass(frozen=True, slots=True)
class Change:
    """An nsqlookupd began to answer or to fail: worth one line in the log."""

    lookupd: str
    ok: bool
    error: str | None
    #: Answers or failures of the state that ended; 0: it had none.
    after: int


@dataclass(frozen=True, slots=True)
class Health(Generic[K]):
    """What is known of one nsqlookupd."""

    #: None before its first answer or failure.
    ok: bool | None
    #: Why it fails; None while it does not.
    error: str | None
    #: Seconds since 1970 when it came into this state; None before the first answer.
    since: float | None
    #: Failures since the last good answer.
    failures_in_a_row: int
    #: The nodes of its last good answer.
    last_nodes: tuple[K, ...]


class _Lookupd(Generic[K]):
    __slots__ = ("count", "error", "nodes", "ok", "since")

    def __init__(self) -> None:
        self.ok: bool | None = None
        self.error: str | None = None
        self.since: float | None = None
        self.count = 0  # answers, or failures, in this state
        self.nodes: tuple[K, ...] = ()


class WantedNodes(Generic[K]):
    """The union of what was found, keyed by node.

    The caller polls, and tells each result with :meth:`answered` or :meth:`failed` as it comes, so that a slow
    nsqlookupd delays nobody; and :meth:`finish_round` when all have answered, failed or timed out.  It tells
    :meth:`connected` and :meth:`disconnected` of each node it was asked to connect to, a failed attempt being a
    disconnect.  Keys are compared only: an address map is applied before.
    """

    __slots__ = (
        "_changes",
        "_clock",
        "_good",
        "_known",
        "_listing",
        "_lookupds",
        "_tried",
        "_up",
    )

    def __init__(self, lookupds: Iterable[str] = (), *, clock: Clock) -> None:
        self._lookupds: dict[str, _Lookupd[K]] = {name: _Lookupd() for name in lookupds}
        self._clock = clock
        self._listing: Counter[K] = Counter()  # how many nsqlookupds list it; never 0
        self._known: dict[K, None] = {}  # found ones that were connected to, in that order
        self._up: set[K] = set()  # connected, or being connected to
        self._tried: set[K] = set()  # in this round
        self._good = False  # an nsqlookupd has answered in this round
        self._changes: list[Change] = []

    # -- connections

    def connected(self, key: K) -> None:
        """Take that *key* is connected."""
        self._up.add(key)

    def disconnected(self, key: K) -> list[Forget[K]]:
        """Take that *key* is not connected any more, or could not be.  Only a later poll brings it back (CONN-4)."""
        self._up.discard(key)
        return [] if self._is_listed(key) else self._forget([key])

    # -- polls

    def answered(self, lookupd: str, nodes: Iterable[K]) -> list[Connect[K]]:
        """Take a good answer; return whom to connect to because of it.

        No nodes is a good answer: an unknown topic is not an error (DISC-5).
        """
        state = self._state(lookupd)
        self._list(state, tuple(dict.fromkeys(nodes)))
        self._good = True
        self._turn(lookupd, state, None)
        return self._connect_to(lookupd, state.nodes)

    def failed(self, lookupd: str, error: object) -> None:
        """Take that *lookupd* gave no good answer; what it said before still stands (DISC-6)."""
        self._turn(lookupd, self._state(lookupd), str(error))

    def dropped(self, lookupd: str) -> None:
        """Take that *lookupd* is none of the cluster's any more, so that what it said counts no longer."""
        state = self._lookupds.pop(lookupd, None)
        if state is not None:
            self._list(state, ())

    def finish_round(self) -> list[Connect[K] | Forget[K]]:
        """End the poll; return what follows from all of its answers together, and begin the next one."""
        decisions: list[Connect[K] | Forget[K]] = []
        if self._good:
            decisions += self._forget([key for key in self._known if key not in self._up and not self._is_listed(key)])
        else:
            for name, state in self._lookupds.items():
                decisions += self._connect_to(name, state.nodes)
        self._good = False
        self._tried.clear()
        return decisions

    # -- what is so

    @property
    def listed(self) -> tuple[K, ...]:
        """The nodes of the last good answers of all nsqlookupds, each once (DISC-2)."""
        return tuple(dict.fromkeys(key for state in self._lookupds.values() for key in state.nodes))

    def health(self) -> dict[str, Health[K]]:
        """Return the state of each nsqlookupd; from any thread."""
        return {
            name: Health(state.ok, state.error, state.since, 0 if state.ok else state.count, state.nodes)
            for name, state in list(self._lookupds.items())
        }

    def take_changes(self) -> list[Change]:
        """Return the changes of state since the last call, each once, for the log (DISC-6)."""
        changes, self._changes = self._changes, []
        return changes

    # -- inside

    def _state(self, lookupd: str) -> _Lookupd[K]:
        return self._lookupds.setdefault(lookupd, _Lookupd())

    def _turn(self, lookupd: str, state: _Lookupd[K], error: str | None) -> None:
        ok = error is None
        if state.ok is not ok:
            self._changes.append(Change(lookupd, ok, error, state.count))
            state.ok, state.since, state.count = ok, self._clock.wall(), 0
        state.error = error
        state.count += 1

    def _connect_to(self, source: str, nodes: Iterable[K]) -> list[Connect[K]]:
        wanted = [key for key in nodes if key not in self._up and key not in self._tried]
        self._known.update(dict.fromkeys(wanted))
        self._up.update(wanted)
        self._tried.update(wanted)
        return [Connect(key, source) for key in wanted]

    def _forget(self, keys: Iterable[K]) -> list[Forget[K]]:
        forgotten = [key for key in keys if key in self._known]
        for key in forgotten:
            del self._known[key]
        return [Forget(key) for key in forgotten]

    def _is_listed(self, key: K) -> bool:
        return key in self._listing

    def _list(self, state: _Lookupd[K], nodes: tuple[K, ...]) -> None:
        if nodes == state.nodes:
            return
        self._listing.update(nodes)
        for key in state.nodes:
            if self._listing[key] == 1:
                del self._listing[key]
            else:
                self._listing[key] -= 1
        state.nodes = nodes
