"""Computes the requeue delay of a failed message, and decides when to give up a message (MSG-1, MSG-4, CFG-4)."""

from __future__ import annotations

import re
from collections.abc import Hashable
from random import Random

from gnsq_lite.options import RetryOptions


def requeue_delay(options: RetryOptions, attempts: int, rng: Random) -> float:
    """Return the requeue delay, in seconds, of a message that failed at its *attempts*-th delivery.

    The delay is ``requeue_delay`` after the first failure, and grows by ``requeue_growth * requeue_delay`` with each
    failure, up to ``max_requeue_delay``.  A random share of at most ``requeue_jitter`` then shortens the delay, so that
    nsqd does not send all messages that failed together at the same time.  *attempts* is nsqd's count, from 1.
    """
    further = max(attempts, 1) - 1
    delay = min(options.requeue_delay * (1.0 + options.requeue_growth * further), options.max_requeue_delay)
    return delay * (1.0 - options.requeue_jitter * rng.random())


def longest_requeue(error: str) -> float | None:
    """Return nsqd's ``--max-req-timeout`` in seconds, if *error* refuses a requeue delay that is longer, else None.

    nsqd up to 1.0.0 closes the connection with this error.  Newer versions shorten the delay.
    """
    found = re.search(r"REQ timeout \d+ out of range 0-(\d{1,18})$", error)  # in nanoseconds
    return None if found is None or not int(found[1]) else int(found[1]) / 1e9


#: Allowed deliveries beyond ``max_attempts`` to processes that hung or stopped before a handler began.
UNSEEN = 20
#: Minimum number of remembered messages.  A message that is forgotten before its next delivery may be handled once more
#: than ``max_attempts``.
REMEMBERED = 10_000


class Tries:
    """Remembers messages that a handler of this process began at their last attempt and did not finish (MSG-4).

    nsqd counts deliveries, not handler calls: a message that timed out in a hung process has used an attempt too.  So a
    message with more than ``max_attempts`` is given up without a handler call only if a handler of this process began
    its last attempt or a later one.  Any other message is handled once more, and given up if the handler fails.

    A process that crashes forgets its messages.  So a message with more than ``max_attempts`` plus UNSEEN deliveries is
    always given up.

    If *remembers_all* is true, the attempts of all unfinished messages are remembered.  A Reader with ``not_before``
    counts attempts so, because nsqd also counts early deliveries.

    Thread-safe.
    """

    def __init__(self, max_attempts: int, keep: int = REMEMBERED, *, remembers_all: bool = False) -> None:
        self._max, self._keep, self._remembers_all = max_attempts, keep, remembers_all
        #: Two generations of at most *keep* messages each with their attempts, the newer first.  A full one replaces
        #: the older one.  They are in one attribute, because several threads may replace them at the same time.
        self._generations: tuple[dict[Hashable, int], dict[Hashable, int]] = ({}, {})

    def is_over(self, attempts: int) -> bool:
        """Return whether *attempts* exceeds max_attempts.  The message is then handled at most once more."""
        return 0 < self._max < attempts

    def tried(self, key: Hashable, attempts: int) -> None:
        """Record that a handler began the message and did not finish it."""
        if 0 < self._max <= attempts or (self._remembers_all and attempts):
            recent = self._generations[0]
            if len(recent) >= self._keep:
                older, recent = recent, {}
                self._generations = recent, older
            recent[key] = attempts

    def remembered(self, key: Hashable) -> int:
        """Return the highest number of attempts that :meth:`tried` recorded for the message, or 0."""
        return max(each.get(key, 0) for each in self._generations)

    def gives_up(self, key: Hashable, attempts: int, begun: int = 0, unseen: int = 0) -> bool:
        """Return whether to give up a message without calling its handler.

        Args:
            begun: Number of attempts, without the first, in which a handler of any process began the message.
            unseen: Number of deliveries, besides UNSEEN, in which perhaps no handler began the message.
        """
        if not self.is_over(attempts):
            return False
        was_tried = self.remembered(key) >= self._max or begun >= max(1, self._max - 1)
        return was_tried or attempts > self._max + UNSEEN + unseen

    def gives_up_timed(self, remembered: int, begun: int) -> bool:
        """Return whether to give up a message whose ``not_before`` has passed, whatever number of attempts nsqd counts.

        Args:
            remembered: Number of attempts that this process remembers.
            begun: Number of attempts in which a handler of any process began the message and did not finish it.
        """
        return 0 < self._max <= max(remembered, begun)
