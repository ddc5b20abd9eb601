"""Publishes of one turn of the loop to one topic, gathered into one MPUB; each keeps its own outcome.

A greenlet of the loop's own thread that waits for its publish costs a body in a list and a switch: no object of its
own, no callback, no timer.  All that wait for one MPUB are resumed in one callback of the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gnsq_lite.net.publication import Publication
from gnsq_lite.net.runtime import Loop
from gnsq_lite.wire import commands

#: Greenlets resumed before the loop looks after its sockets again.
_RESUMED_AT_ONCE = 256


class Gathering(Publication):
    """An MPUB in the making: the publishes of one turn that have one topic and one timeout; a PUB if it is but one."""

    __slots__ = ("_bodies", "_switch_to_hub", "_waiters", "members", "room")

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, most: int) -> None:
        super().__init__(loop, topic, b"", 0, timeout, deadline)
        self._bodies: list[bytes] = []
        self._switch_to_hub = loop.hub.switch
        self._waiters: deque[Any] = deque()
        #: Publishes that somebody holds: of publish_nowait, or of other threads.
        self.members: list[Publication] = []
        #: Bytes that one more body may have.
        self.room = most - 8

    def add(self, publication: Publication, body: bytes) -> None:
        """Take a publish in that somebody holds."""
        self._bodies.append(body)
        self.room -= len(body) + 4
        self.cost += publication.cost
        self.members.append(publication)

    def wait_with(self, body: bytes, greenlet: Any) -> Any:
        """Take a body in and wait, in *greenlet*, which is the caller's own, for the outcome of all."""
        self._bodies.append(body)
        self.room -= len(body) + 4
        self._waiters.append(greenlet)
        try:
            self._switch_to_hub()
            while not self._done:
                self._switch_to_hub()
        except BaseException:  # killed, or out of patience: nobody is to switch here any more
            if greenlet in self._waiters:
                self._waiters.remove(greenlet)
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def finish(self) -> None:
        """Make the command's bytes: nothing is added any more."""
        bodies, self._bodies = self._bodies, []
        self.count = len(bodies)
        if len(bodies) == 1:
            self.data = commands.publish(self.topic, bodies[0])
        else:
            self.data = commands.multipublish_head(self.topic) + commands.multipublish_body(bodies)

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Settle each member, and resume whoever waits."""
        first = super().settle(value, error)
        if first:
            for member in self.members:
                member.settle(value, error)
            if self._waiters:
                self._loop.resume_soon(self)
        return first

    def resume(self) -> None:
        """Switch to those that wait; in the hub."""
        waiters = self._waiters
        try:
            for _ in range(min(len(waiters), _RESUMED_AT_ONCE)):
                if waiters:
                    waiters.popleft().switch()
        finally:
            if waiters:
                self._loop.resume_soon(self)
