"""Which of the connections that wait for RDY are asked what they have (RDY-6): pure.

nsqd sends what it has as soon as it gets RDY.  One that was quiet for a moment has nothing, and if it kept its RDY for
the whole idle time, the messages of all others would wait.  So a round of questions is quick: each connection that
waits has RDY until it has been quiet for a moment.  A round that brought something is followed by another one.  After
one that brought nothing RDY rests where it is, until something comes or the idle time is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

from gnsq_lite.policy.ready_state import Key, ReadyState


class Asking:
    """The round of questions that is under way, if any.

    Args:
        moment: Seconds without a message after which a connection that is asked has none.
    """

    __slots__ = ("_found", "_left", "_moment")

    def __init__(self, moment: float) -> None:
        self._moment = moment
        self._left: set[Key] = set()  # who is still to be asked
        self._found = False  # something came since the round began

    def stop(self) -> None:
        """Nobody waits any more."""
        self._left, self._found = set(), False

    def begin(self, waiting: Iterable[Key]) -> None:
        """Somebody's turn is over: ask those that are *waiting*, unless that is being done."""
        if not self._left:
            self._left, self._found = set(waiting), False

    def found(self) -> None:
        """Something came."""
        self._found = True

    def look(self, waiting: Set[Key]) -> None:
        """Forget those that wait no more; begin another round where this one is over and has brought something."""
        self._left &= waiting
        if self._found:
            self.begin(waiting)

    def ask(self, connection: ReadyState) -> None:
        """It gets RDY, for which it has waited."""
        self._left.discard(connection.key)
        connection.is_asked = True

    def quiet(self, holders: Iterable[ReadyState], now: float, others: int) -> list[ReadyState]:
        """Return who is to yield to those that are left, but for as many as there are *others* to do so."""
        quiet = [c for c in holders if now >= self._quiet_at(c)]
        return quiet[: max(0, len(self._left) - others)]

    def due(self, holders: Iterable[ReadyState]) -> float:
        """Return when the first of them will have been quiet for a moment, if that matters."""
        return min(map(self._quiet_at, holders), default=math.inf) if self._left or self._found else math.inf

    def _quiet_at(self, connection: ReadyState) -> float:
        is_waited_for = connection.is_asked and connection.in_flight < connection.size
        return connection.active + self._moment if is_waited_for else math.inf
