"""Limits the messages in flight so that messages arrive at most at a given rate.

RateLimit is a token bucket: each received message takes one token, and tokens are added at the rate.  The number of
messages in flight is at most the number of tokens, so a burst is at most as large as the bucket.  nsqd may send more
messages before it receives a lower RDY, above all if handlers are fast.  Then the number of tokens becomes negative,
and the pause becomes longer, so the average rate still holds.
"""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: Size of the bucket: the tokens of this many seconds.
_BURST = 1.0
#: Minimum step by which the limit is raised, as a share of the bucket.
_PART = 0.1


class RateLimit:
    """Rate limit of one Reader.  *rate* is in messages per second."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate * _BURST)
        self._least = max(1.0, self._most * _PART)
        self._tokens, self._at = self._most, clock.now()
        #: Messages that may be in flight.
        self.allowed = int(self._tokens)

    @property
    def tokens(self) -> float:
        """Tokens in the bucket now.  The number is negative if more messages arrived than were allowed."""
        return min(self._most, self._tokens + (self._clock.now() - self._at) * self._rate)

    @property
    def next_tick(self) -> float | None:
        """Time at which :meth:`tick` will allow more messages; None at the maximum."""
        if self.allowed >= int(self._most):
            return None
        return self._at + max(0.0, self._wanted() - self._tokens) / self._rate

    def _wanted(self) -> float:
        """Return the number of tokens at which the limit is raised.  With steps of 1 each message would need an RDY."""
        return min(float(int(self._most)), self.allowed + self._least)

    def received(self, count: int) -> None:
        """Record that *count* messages arrived."""
        self._tokens, self._at = self.tokens - count, self._clock.now()
        self.allowed = min(self.allowed, max(0, int(self._tokens)))

    def tick(self) -> None:
        """Raise the limit if enough tokens were added."""
        if self.tokens + 1e-9 >= self._wanted():
            self.allowed = max(self.allowed, int(self.tokens + 1e-9))
