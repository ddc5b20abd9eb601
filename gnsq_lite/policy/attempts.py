"""How long a failed message waits, and when it is given up (MSG-1, MSG-4, CFG-4)."""

from __future__ import annotations

from gnsq_lite.options import RetryOptions
from gnsq_lite.policy.chance import Rng


def requeue_delay(options: RetryOptions, attempts: int, rng: Rng) -> float:
    """Return the seconds nsqd shall hold a message back that has failed at its *attempts*-th delivery.

    ``requeue_delay`` after the first, ``requeue_growth * requeue_delay`` more after each further one, at most
    ``max_requeue_delay``; then shortened by a random part of up to ``requeue_jitter``, so that messages that failed
    together do not come back together.  *attempts* is nsqd's count and starts at 1; less counts as 1.
    """
    further = max(attempts, 1) - 1
    delay = min(options.requeue_delay * (1.0 + options.requeue_growth * further), options.max_requeue_delay)
    return delay * (1.0 - options.requeue_jitter * rng.random())


def gives_up(options: RetryOptions, attempts: int) -> bool:
    """Return whether a message that arrives with this count of attempts is not to be handled any more.

    "More than ``max_attempts``": a message is handled ``max_attempts`` times, and given up when it arrives once more.
    0 means no limit.
    """
    return 0 < options.max_attempts < attempts
