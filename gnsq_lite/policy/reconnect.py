"""How long a lost direct nsqd is left alone (CONN-3)."""

from __future__ import annotations

from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.rng import Rng

#: Seconds a connection is ready at least, and no less than the shortest delay, before it counts as a success.
_A_WHILE = 1.0


class Reconnect:
    """Delays between attempts: 8, 16, 32 ... seconds by default, up to a cap, each changed a little at random.

    One object per nsqd.  Only a connection that has served for a while counts as a success: a server that accepts and
    then refuses SUB or AUTH, or that breaks the protocol after it, is otherwise asked again and again at the shortest
    delay.
    """

    __slots__ = ("_next", "_options", "_rng", "failures")

    def __init__(self, options: ReconnectOptions, rng: Rng) -> None:
        self._options, self._rng = options, rng
        self._next = options.reconnect_delay
        #: Attempts and connections lost since the last success.
        self.failures = 0

    def failed(self, *, longest: bool = False) -> float:
        """Take a failed attempt or a lost connection; return the seconds to wait before the next attempt.

        *longest*: the longest delay at once, for what does not mend by itself.  The jitter goes both ways but never
        over ``max_reconnect_delay``.
        """
        self.failures += 1
        cap = self._options.max_reconnect_delay
        delay = cap if longest else self._next
        self._next = min(delay * 2.0, cap)
        return min(delay * (1.0 + self._options.reconnect_jitter * (2.0 * self._rng.random() - 1.0)), cap)

    def served(self, seconds: float) -> None:
        """Take, before :meth:`failed`, that a connection was ready for *seconds*: long enough, and it starts again."""
        if seconds >= max(_A_WHILE, self._options.reconnect_delay):
            self.restart()

    def restart(self) -> None:
        """Take, before :meth:`failed`, that the connection did what it is for: the delays start again."""
        self.failures = 0
        self._next = self._options.reconnect_delay
