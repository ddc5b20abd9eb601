"""Which nsqlookupds to ask, in which order (YZ-1): pure, with a clock.

The configured ones are the seeds.  ``/listlookup`` of one that answers adds the others of the cluster.  One that
fails is retried at once, then rests: it is asked last, and not before its rest is over unless nothing better is left.
Rests grow, and end with a success.  A found one that is listed no more and fails is forgotten; a seed never is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Verdict


@dataclass(slots=True)
class _Entry:
    seed: bool
    listed: bool
    failures: int = 0
    rounds: int = 0
    rests_until: float = 0.0


class LookupSet:
    """The nsqlookupds of a cluster by address, and how they did.

    Args:
        seeds: The configured addresses, in the user's order.
        retries: How often one is asked again at once before it rests.
        rest: Seconds of the first rest; each further failed round doubles it.
        longest_rest: No rest is longer.
    """

    def __init__(
        self,
        seeds: Iterable[str],
        clock: Clock,
        *,
        retries: int = 1,
        rest: float = 15.0,
        longest_rest: float = 300.0,
    ) -> None:
        self._clock, self._retries, self._rest, self._longest = clock, retries, rest, longest_rest
        self._entries = {address: _Entry(seed=True, listed=False) for address in seeds}

    def addresses(self) -> tuple[str, ...]:
        """Return all that are known, best first: those that work, then those that rest, soonest awake first."""
        now = self._clock.now()
        return tuple(sorted(self._entries, key=lambda address: self._rank(address, now)))

    def due(self) -> tuple[str, ...]:
        """Return those to ask in a round, best first; all that rest when there is no other."""
        now = self._clock.now()
        awake = tuple(a for a in self.addresses() if self._entries[a].rests_until <= now)
        return awake or self.addresses()

    def _rank(self, address: str, now: float) -> tuple[bool, float, int]:
        entry = self._entries[address]
        resting = entry.rests_until > now
        return resting, entry.rests_until if resting else 0.0, entry.rounds

    def found(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Take the whole listing of ``/listlookup``; return those that are new.

        An empty listing, of a server that is in no cluster, says nothing about the others.
        """
        listing = tuple(dict.fromkeys(addresses))
        if not listing:
            return ()
        for address, entry in self._entries.items():
            entry.listed = address in listing
        added = tuple(address for address in listing if address not in self._entries)
        for address in added:
            self._entries[address] = _Entry(seed=False, listed=True)
        return added

    def succeeded(self, address: str) -> None:
        """Take note of an answer: its failures are forgiven."""
        entry = self._entries.get(address)
        if entry is not None:
            entry.failures = entry.rounds = 0
            entry.rests_until = 0.0

    def failed(self, address: str) -> Verdict:
        """Take note of no answer, or a bad one; return what to do."""
        entry = self._entries.get(address)
        if entry is None:
            return Verdict.FORGOTTEN
        entry.failures += 1
        if entry.failures % (self._retries + 1):
            return Verdict.RETRY
        if not entry.seed and not entry.listed:
            del self._entries[address]
            return Verdict.FORGOTTEN
        pause = min(self._rest * 2.0 ** min(entry.rounds, 64), self._longest)
        entry.rounds += 1
        entry.rests_until = self._clock.now() + pause
        return Verdict.RESTS
