"""Chooses how much of its share a connection uses as RDY, so that nsqd sends each message without delay.

**RDY decides when nsqd sends.**  nsqd writes messages into an output buffer.  nsqd flushes the buffer when it is full,
every ``output_buffer_timeout``, and when the messages in flight, including those in the buffer, have reached the
consumer's RDY (``messagePump``, nsqd/protocol_v2.go @v1.3.0).  If RDY is large, a message waits up to
``output_buffer_timeout``.  If RDY is one more than the messages in flight, each message arrives at once, but nsqd sends
the next message only after a round trip.

**The window** is RDY minus the messages in flight.  There are three states:

- *Backlog*: the newest message was published more than :data:`BACKLOG` seconds ago.  The window is the whole share.
- *Flow*: messages arrive.  The window is the number of messages that arrive in :data:`SPAN` at the rate of the last
  reads.  If the newest message is older than :data:`SPAN`, its age replaces :data:`SPAN`.
- *Silence*: no message arrived for :data:`SPAN`.  The window is 1.  If nsqd has buffered messages, the lower RDY makes
  nsqd flush.

The age is right only if the clocks of nsqd and the consumer agree within :data:`BACKLOG`.  If the clocks disagree,
messages still arrive soon, because each silence makes nsqd flush.

**Few commands.**  While messages arrive, RDY changes only if RDY minus the messages in flight is at most half of the
window, or at least twice the window.  If possible, the new RDY is sent together with FINs.  While RDY is the whole
share, reads are not measured: ticks check the counts, at growing intervals.
"""

from __future__ import annotations

from collections import deque

from gnsq_lite.clock import Clock

#: Seconds for which nsqd may buffer messages at a steady rate.  Also the shortest time between two ticks.
SPAN = 0.001
#: Longest time between two ticks, in seconds, if messages arrive and RDY is the whole share.
SLOWEST_TICK = 0.016
#: Age of a message, in seconds, above which the channel has a backlog.
BACKLOG = 0.1
#: Seconds for which RDY is the whole share after messages expired, because nsqd may still count them as in flight.
CAREFUL = 60.0
#: Number of reads over which the rate is measured.
_READS = 4


class Delivery:
    """Chooses the RDY of one connection, up to a limit.

    The caller reports each read and each write of answers, unless :attr:`is_full` is true.  After each call the caller
    sends :attr:`ready` if it has changed, and calls :meth:`tick` after :attr:`tick_after` seconds if it is not None.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = self._in_flight = self._received = 0
        self._window = 1
        self._read_at = clock.now()
        #: Times of the last reads, each with the number of messages received until then.
        self._reads: deque[tuple[float, int]] = deque([(self._read_at, 0)], _READS)
        self._careful_until = float("-inf")
        #: Whether handlers take longer than SPAN.  If so, RDY changes with reads too.  If not, only with answers.
        self._is_slow = False
        #: RDY to send.
        self.ready = 0
        #: Whether RDY is the whole limit and can stay so.  If so, the caller need not report reads and answers.
        self.is_full = True
        #: Seconds until the next tick, or None if no tick is needed.
        self.tick_after: float | None = None

    def set_limit(self, limit: int, in_flight: int) -> None:
        """Change the limit."""
        self._limit, self._in_flight = limit, in_flight
        self._set(min(limit, in_flight + self._window))

    def received(self, count: int, in_flight: int, age: float) -> None:
        """Record a read of *count* messages, of which the last is *age* seconds old."""
        now = self._clock.now()
        since, before = self._reads[0]
        self._received += count
        self._in_flight, self._read_at = in_flight, now
        self._reads.append((now, self._received))
        self._flow(now - since, self._received - before, age)
        if self._is_slow:
            self._adjust()
        else:
            self._plan()

    def answered(self, in_flight: int) -> None:
        """Record answers that the caller sends now.  *in_flight* messages remain.  RDY may change."""
        self._in_flight = in_flight
        if not in_flight and self._clock.now() - self._read_at < SPAN:
            self._is_slow = False
        self._adjust()

    def expired(self, in_flight: int) -> None:
        """Record that messages expired.  nsqd may still count them as in flight."""
        self._in_flight, self._careful_until = in_flight, self._clock.now() + CAREFUL
        self._set(self._limit)
        self.tick_after = CAREFUL

    def tick(self, received: int, in_flight: int, age: float) -> None:
        """Check the counts.

        *received* is the number of messages since the connection was opened.  *age* is the age of the last message at
        its arrival.
        """
        now = self._clock.now()
        if now < self._careful_until:
            self.tick_after = self._careful_until - now
            return
        self._in_flight = in_flight
        count, elapsed = received - self._received, now - self._read_at
        if self.is_full and count and self._limit > 1:
            self._received, self._read_at = received, now
            self._flow(elapsed, 2 * count, age)  # twice the rate, so that a window near the whole share does not change
            if self._window == self._limit:
                self.tick_after = min(2.0 * (self.tick_after or SPAN), SLOWEST_TICK)
                return
            self._reads.clear()
            self._reads.append((now, received))
        elif self.ready - in_flight <= 0:
            self._is_slow = True
        elif elapsed >= SPAN:
            self._window = 1
            self._set(min(self._limit, in_flight + 1))
            return
        self._adjust()

    def _flow(self, seconds: float, count: int, age: float) -> None:
        """Choose the window from the rate and the age of messages."""
        # During the age of the newest message, this many messages arrived at nsqd.  All of them may wait in nsqd.
        waiting = self._limit if age > BACKLOG else int(max(SPAN, age) * count / max(seconds, 1e-6))
        self._window = max(1, min(waiting, self._limit))

    def _adjust(self) -> None:
        """Change RDY if the unused part of RDY is at most half of the window, or at least twice the window."""
        room = self.ready - self._in_flight
        if 2 * room <= self._window or room >= 2 * self._window:
            self._set(min(self._limit, self._in_flight + self._window))
        else:
            self._set(self.ready)

    def _set(self, ready: int) -> None:
        self.ready = min(ready, self._limit) if self._clock.now() >= self._careful_until else self._limit
        self.is_full = self.ready == self._limit and (self._limit <= 1 or self._window >= self._limit)
        self._plan()

    def _plan(self) -> None:
        room = self.ready - self._in_flight
        needs_look = room > 1 or (room <= 0 and self.ready < self._limit) or self.is_full
        self.tick_after = SPAN if needs_look and self._limit > 1 else None
