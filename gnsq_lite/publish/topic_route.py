"""What a Writer knows of one topic's leaders, and the publishes that wait for more (YZ-4, YZ-8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from gnsq_lite.dialect import Endpoint, Lookup
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.policy.leaders import Leaders
from gnsq_lite.publish.publication import Publish


class Topic:
    """One topic's route."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: What nsqlookupds listed last; and that without the leaders that were lost, or said that they are none, since.
        self.listed: Lookup | None = None
        self.lookup: Lookup | None = None
        #: Those of the lookup, while it is fresh and nothing waits for another one; each time others.
        self.leaders: Leaders | None = None
        #: Those that wait for a fresh lookup, and those whose partition has no leader in the last one; in their order.
        self.waiting: deque[Publish] = deque()
        self.held: deque[Publish] = deque()
        self.discovery: Discovery | None = None
        #: Whether publishes may be placed; else a fresh lookup is under way.
        self.fresh = False
        #: How often a publish was put back.
        self.returns = 0
        self.timer: Any = None

    def put_back(self, publish: Publish) -> None:
        """Have all wait for a fresh lookup, it at its place."""
        self.returns += 1
        self.leaders, self.fresh = None, self.discovery is None
        insert(self.waiting, publish)

    def doubt(self, leader: Endpoint) -> bool:
        """Send nothing to *leader* until nsqlookupds were asked; return whether something might have been."""
        if self.lookup is None or leader not in self.lookup.endpoints:
            return False
        self.returns += 1
        self.lookup = self.lookup.only(lambda each: each != leader)
        return True

    def has_leaders(self) -> bool:
        """Whether a leader is known that is not in doubt, of a partition: such an nsqd makes no topic by itself."""
        return self.lookup is not None and any(each.partition is not None for each in self.lookup.endpoints)

    def weigh(self, lookup: Lookup, said: Sequence[Lookup]) -> Lookup:
        """Return what counts of an answer, given what each nsqlookupd that works has *said* last.

        Where they differ, nothing in their answers tells which is newer.  So those leaders go on that another lists,
        until one refuses or is lost; then what somebody else lists comes first.
        """
        listed = self.listed
        if listed is None or not listed.endpoints or listed.endpoints[0].partition is None:
            return lookup
        if self.lookup is not listed:
            others = [each for each in said if each.endpoints and each.endpoints != listed.endpoints]
            return others[0] if others and lookup.endpoints == listed.endpoints else lookup
        adds = {each.partition for each in lookup.endpoints} - {each.partition for each in listed.endpoints}
        goes_on = not adds and any(each.endpoints == listed.endpoints for each in said)
        return lookup if lookup.endpoints == listed.endpoints or not goes_on else listed

    def is_led(self, partition: int | None) -> bool:
        """Whether that partition has a leader that is not in doubt."""
        return self.lookup is not None and any(each.partition == partition for each in self.lookup.endpoints)


def insert(queue: deque[Publish], publish: Publish) -> None:
    """Insert it after everything published before it and before everything published after it."""
    at = len(queue)
    while at and queue[at - 1].number > publish.number:
        at -= 1
    queue.insert(at, publish)
