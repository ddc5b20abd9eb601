"""How long a failed message waits, and when it is given up (MSG-1, MSG-4, CFG-4)."""

from __future__ import annotations

from collections.abc import Hashable

from gnsq_lite.options import RetryOptions
from gnsq_lite.policy.rng import Rng


def requeue_delay(options: RetryOptions, attempts: int, rng: Rng) -> float:
    """Return the seconds nsqd shall hold a message back that has failed at its *attempts*-th delivery.

    ``requeue_delay`` after the first, ``requeue_growth * requeue_delay`` more after each further one, at most
    ``max_requeue_delay``; then shortened by a random part of up to ``requeue_jitter``, so that messages that failed
    together do not come back together.  *attempts* is nsqd's count and starts at 1; less counts as 1.
    """
    further = max(attempts, 1) - 1
    delay = min(options.requeue_delay * (1.0 + options.requeue_growth * further), options.max_requeue_delay)
    return delay * (1.0 - options.requeue_jitter * rng.random())


#: Deliveries beyond ``max_attempts`` that are put down to processes in which no handler began: hung or stopped ones.
UNSEEN = 20
#: Messages that are remembered, at least; the number of those that fail at their last attempt before one comes again.
REMEMBERED = 10_000


class Tries:
    """Remembers which messages a handler of this process had at their last attempt, and did not finish (MSG-4).

    nsqd counts deliveries, not handlers: one that waited in a hung process until its time was over has cost an attempt
    too.  So a message that comes with more than ``max_attempts`` is given up at once only where it was tried here at
    its last attempt, or later.  Any other is handled once more, and given up when that fails.  A message that ends the
    process it is handled in leaves no memory: with UNSEEN deliveries more than ``max_attempts`` it is given up anyway.

    May be used in any thread.
    """

    __slots__ = ("_keep", "_max", "_older", "_recent")

    def __init__(self, max_attempts: int, keep: int = REMEMBERED) -> None:
        self._max, self._keep = max_attempts, keep
        # Two generations, each no larger than *keep*: nothing is searched for the oldest.
        self._recent: set[Hashable] = set()
        self._older: set[Hashable] = set()

    def is_over(self, attempts: int) -> bool:
        """Return whether a message with this count is handled, if at all, for the last time.  0 means no limit."""
        return 0 < self._max < attempts

    def tried(self, key: Hashable, attempts: int) -> None:
        """Note that a handler began the message and did not finish it."""
        if 0 < self._max <= attempts:
            if len(self._recent) >= self._keep:
                self._older, self._recent = self._recent, set()
            self._recent.add(key)

    def not_begun(self, key: Hashable) -> None:
        """Note that no handler had begun it after all."""
        self._recent.discard(key)
        self._older.discard(key)

    def gives_up(self, key: Hashable, attempts: int, begun: int = 0, unseen: int = 0) -> bool:
        """Return whether a message that arrives with this count is not to be handled any more.

        Args:
            begun: Handlers of this and other processes that began it and did not finish it, the first attempt's aside.
            unseen: Further deliveries to processes in which no handler may have begun it.
        """
        if not self.is_over(attempts):
            return False
        was_tried = key in self._recent or key in self._older or begun >= max(1, self._max - 1)
        return was_tried or attempts > self._max + UNSEEN + unseen
