"""Which nsqlookupds to query (YZ-1): pure, with a clock.

The configured ones are the seeds.  ``/listlookup`` of one that answers adds the others of the cluster.  One that fails
is queried again at once; if it fails again, it is left alone for a minute, unless all are.  A found one that fails and
is not listed any more is forgotten; a seed never is.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Verdict

#: Seconds for which an nsqlookupd that failed twice in a row is left alone.
REST = 60.0


class LookupSet:
    """The nsqlookupds of a cluster by address, and how they did.

    Args:
        seeds: The configured addresses.
    """

    def __init__(self, seeds: Iterable[str], clock: Clock) -> None:
        self._clock = clock
        #: Until when each is left alone.
        self._rests = dict.fromkeys(seeds, 0.0)
        self._seeds, self._listed = frozenset(self._rests), frozenset[str]()
        #: Those whose last query failed.
        self._failed: set[str] = set()

    def due(self) -> tuple[str, ...]:
        """Return those to query now; all of them if all are to be left alone."""
        now = self._clock.now()
        return tuple(each for each, until in self._rests.items() if until <= now) or tuple(self._rests)

    def found(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Take the whole listing of ``/listlookup``; return those that are new.

        An empty listing, of a server that is in no cluster, says nothing about the others.
        """
        listed = dict.fromkeys(addresses)
        self._listed = frozenset(listed) or self._listed
        added = tuple(each for each in listed if each not in self._rests)
        self._rests.update(dict.fromkeys(added, 0.0))
        return added

    def succeeded(self, address: str) -> None:
        """Take note of an answer."""
        self._failed.discard(address)
        if address in self._rests:
            self._rests[address] = 0.0

    def failed(self, address: str) -> Verdict:
        """Take note of no answer, or a bad one; return what to do."""
        if address in self._rests and address not in self._failed:
            self._failed.add(address)
            return Verdict.RETRY
        self._failed.discard(address)
        if address not in self._seeds | self._listed:
            self._rests.pop(address, None)
            return Verdict.FORGOTTEN
        self._rests[address] = self._clock.now() + REST
        return Verdict.RESTS
