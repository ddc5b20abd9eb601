"""The publishes without an outcome: counts them, limits how many bytes wait, and keeps their deadlines.

Publishes are grouped by deadline, so that an expired one costs a look at its group alone, however many others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import BacklogFull, NotSent, NSQError, OutcomeUnknown
from gnsq_lite.net.loop import Loop, sleep
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.publish.publication import Publish

#: Seconds that the deadlines of one group span, and at least pass between two looks for expired ones.
_SPAN = 0.02
#: Seconds between two looks whether every publish has its outcome.
_POLL = 0.001
_NEVER = float("inf")


class Outcomes:
    """Of one Writer; in the loop's thread, but for :meth:`reserve` and :attr:`backlog`.

    Args:
        max_pending: Bytes that publishes nobody waits for may have without an outcome.
        error: Returns the error of a publish whose deadline has passed.
        on_expired: Called after deadlines have passed.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        max_pending: int,
        error: Callable[[Publish], NSQError],
        on_expired: Callable[[], None],
    ) -> None:
        self._loop, self._clock, self._max_pending = loop, clock, max_pending
        self._error, self._on_expired = error, on_expired
        self._groups: dict[int, set[Publish]] = {}
        #: When the timer looks for expired deadlines.
        self._look_at = _NEVER
        self._timer: Any = None
        self._lock = native_lock()
        self._reserved = self._released = 0
        #: Messages that nsqd took, that failed, and of unknown outcome.
        self.published = self.failed = self.unknown = 0

    # -- the publishes without an outcome

    def add(self, publish: Publish) -> None:
        """Note a publish that the loop carries out from now on."""
        deadline = publish.deadline
        number = int(deadline / _SPAN)
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = set()
        group.add(publish)
        publish.peers = group
        if deadline < self._look_at:
            self._set_timer(deadline)

    def open(self) -> Iterable[Publish]:
        """Return every publish without an outcome."""
        return [publish for group in self._groups.values() for publish in group if not publish._done]

    def all_settled(self) -> bool:
        """Return whether every publish has its outcome."""
        return not any(self._groups.values()) or not self.open()

    def succeeded(self, publish: Publish, value: Any = None) -> None:
        """Settle a publish that nsqd took."""
        if publish.settle(value):
            self.published += publish.count
        self.forget(publish)

    def failed_with(self, publish: Publish, error: BaseException) -> None:
        """Settle a publish with *error*."""
        if publish.settle(error=error):
            self.count_failure(publish, error)
        else:
            self.forget(publish)

    def count_failure(self, publish: Publish, error: BaseException) -> None:
        """Count a publish that was settled with *error*."""
        self.forget(publish)
        if isinstance(error, OutcomeUnknown):
            self.unknown += publish.count
        else:
            self.failed += publish.count

    def forget(self, publish: Publish) -> None:
        """Drop a publish that has its outcome, and give back its room."""
        if publish.peers is not None:
            publish.peers.discard(publish)
        if publish.cost:
            self.release(publish)

    def reset(self, why: str) -> None:
        """Give each publish an outcome: an exception has interrupted what would have done that."""
        for publish in [each for group in self._groups.values() for each in group]:
            if publish._done:
                publish.announce_again()
                self.forget(publish)
            else:
                unknown = OutcomeUnknown(f"{why}: its outcome is unknown") if publish.sent else NotSent(why)
                self.failed_with(publish, unknown)
        self._groups.clear()
        self._set_timer(_NEVER)

    def drain(self, timeout: float, is_empty: Callable[[], bool]) -> bool:
        """Wait until every publish has its outcome and *is_empty* says so too; return whether they have."""
        ends = self._clock.now() + timeout
        while not (self.all_settled() and is_empty()):
            left = ends - self._clock.now()
            if left <= 0:
                return False
            sleep(min(left, _POLL))
        return True

    # -- the limit

    @property
    def backlog(self) -> int:
        """Bytes without an outcome that nobody waits for; from any thread."""
        return self._reserved - self._released

    def reserve(self, publish: Publish, size: int) -> None:
        """Count *size* bytes for a publish; from any thread.  Raises BacklogFull."""
        with self._lock:
            if self.backlog + size > self._max_pending:
                raise BacklogFull(f"{self._max_pending} bytes are unanswered already (max_pending); nothing was sent")
            self._reserved += size
        publish.cost = size

    def release(self, publish: Publish) -> None:
        """Give back the room of a publish."""
        size, publish.cost = publish.cost, 0
        self._released += size

    # -- deadlines

    def expire(self) -> None:
        """Settle what is overdue.  Must not wait."""
        now = self._clock.now()
        self._look_at = _NEVER
        last = int(now / _SPAN)
        for number in sorted(number for number in self._groups if number <= last):
            for publish in [each for each in self._groups[number] if each.deadline <= now or each._done]:
                if publish._done:
                    self.forget(publish)
                else:
                    self.failed_with(publish, self._error(publish))
        for number in [number for number, group in self._groups.items() if not group]:
            del self._groups[number]
        if self._groups:
            soonest = min(publish.deadline for publish in self._groups[min(self._groups)])
            self._set_timer(max(soonest, now + _SPAN / 2))
        self._on_expired()

    def _set_timer(self, at: float) -> None:
        self.stop()
        self._look_at = at
        if at < _NEVER:
            self._timer = self._loop.timer(at - self._clock.now(), self.expire)

    def stop(self) -> None:
        """Look for no more deadlines."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()
