"""Shares one limit of concurrent handlers among several Readers of one loop, by weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.consume.consumer import Consumer

#: Seconds between two looks at who wants how much.
_EVERY = 0.05


class SharedConcurrency:
    """*members* are Readers of one loop, each with its weight and the most handlers that it may run."""

    def __init__(self, total: int, members: Sequence[tuple[Consumer, float, int]]) -> None:
        self._total, self._members = total, members
        self._timer: Any = None

    def start(self) -> None:
        """Share out now, and every 50 ms until all of them close."""
        loop = self._members[0][0].loop
        self._timer = loop.hub.loop.timer(_EVERY, _EVERY)
        loop.start(self._timer, self._share)
        self._share()

    def _share(self) -> None:
        if all(core.closing for core, _, _ in self._members):
            self._timer.stop()
            self._timer.close()
            return
        wishes = [Wish(weight, most, core.limits.busy(), core.queued()) for core, weight, most in self._members]
        for (core, _, _), count in zip(self._members, share_out(self._total, wishes), strict=True):
            core.set_concurrency(count)


@dataclass(frozen=True)
class Wish:
    """What one Reader's handlers want: *busy* run, *queued* messages wait, and no more than *most* may run."""

    weight: float
    most: int
    busy: int
    queued: int

    @property
    def wanted(self) -> int:
        """Places it could use now."""
        return min(self.most, self.busy + self.queued)


def share_out(total: int, wishes: Sequence[Wish]) -> list[int]:
    """Return the places of each.

    Who wants any has one, as far as they go, the heavier first; the rest goes by weight, no further than wanted, so
    what one leaves is another's.  What nobody wants goes by weight too, for messages that are about to come.  A place
    is given only when it is free: who has too many loses them as its handlers end.  So no more than *total* run, but
    for those that do already.
    """
    fair = _by_weight(total, wishes, [wish.wanted for wish in wishes])
    free = max(0, total - sum(wish.busy for wish in wishes))
    given = []
    for place, wish in enumerate(wishes):
        given.append(min(fair[place], wish.busy))
    for place in _heaviest_first(wishes):
        more = min(fair[place] - given[place], free)
        given[place] += more
        free -= more
    room = [min(wish.most, max(count, wish.busy)) for wish, count in zip(wishes, given, strict=True)]
    idle = [wish.most if wish.wanted <= count else count for wish, count in zip(wishes, room, strict=True)]
    spare = _by_weight(free, wishes, [most - count for most, count in zip(idle, room, strict=True)])
    return [count + more for count, more in zip(given, spare, strict=True)]


def _heaviest_first(wishes: Sequence[Wish]) -> list[int]:
    return sorted(range(len(wishes)), key=lambda place: -wishes[place].weight)


def _by_weight(total: int, wishes: Sequence[Wish], limits: Sequence[int]) -> list[int]:
    shares = [0] * len(wishes)
    for place in _heaviest_first(wishes):
        if total and limits[place] > 0:
            shares[place] = 1
            total -= 1
    takers = [place for place in range(len(wishes)) if shares[place] < limits[place]]
    while total > 0 and takers:
        place = min(takers, key=lambda taker: (shares[taker] + 1) / wishes[taker].weight)
        shares[place] += 1
        total -= 1
        if shares[place] >= limits[place]:
            takers.remove(place)
    return shares
