"""How many messages may be in flight so that no more than so many a second come.  Pure: the clock is given.

A bucket of tokens: one is taken by each message that comes, and they come back at the rate.  What may be in flight is
never more than there are tokens, so a burst is no larger than the bucket.  nsqd learns of it a moment later, and may
have sent more by then: the bucket goes below nothing, and the pause is longer by that much.  So the rate holds in the
long run however fast messages are answered.
"""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: The bucket holds what comes in this many seconds; what comes back is given out when it is a tenth of that.
_BURST = 1.0
_PART = 0.1


class RateLimit:
    """Of one Reader; *rate* is messages a second."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate * _BURST)
        self._least = max(1.0, self._most * _PART)
        self._tokens, self._at = self._most, clock.now()
        #: Messages that may be in flight.
        self.allowed = int(self._tokens)

    @property
    def tokens(self) -> float:
        """What is in the bucket now; below 0, where more came than was allowed."""
        return min(self._most, self._tokens + (self._clock.now() - self._at) * self._rate)

    @property
    def next_tick(self) -> float | None:
        """When :meth:`tick` will allow more; None: all that there can be is allowed."""
        if self.allowed >= int(self._most):
            return None
        return self._at + max(0.0, self._wanted() - self._tokens) / self._rate

    def _wanted(self) -> float:
        """Tokens at which more is allowed: not each by itself, or every message would cost a RDY."""
        return min(float(int(self._most)), self.allowed + self._least)

    def received(self, count: int) -> None:
        """So many messages have come."""
        self._tokens, self._at = self.tokens - count, self._clock.now()
        self.allowed = min(self.allowed, max(0, int(self._tokens)))

    def tick(self) -> None:
        """Allow what has come back, if it is worth it."""
        if self.tokens + 1e-9 >= self._wanted():
            self.allowed = max(self.allowed, int(self.tokens + 1e-9))
