"""How much of its share of RDY a connection uses, so that nsqd sends a message when it has one.

**RDY decides when nsqd sends.**  What nsqd writes to a consumer gathers in a buffer.  nsqd flushes it when it is full,
when ``output_buffer_timeout`` ticks, and at once when the consumer is not ready for more: when its messages in flight,
those in the buffer included, have reached its RDY (``messagePump``, nsqd/protocol_v2.go @v1.3.0).  With all of a large
share as RDY a message waits for the tick.  With RDY one above what is in flight it comes at once, but each message
costs a round trip.

**The window** is by how many messages RDY is kept above what is in flight.  There are three states:

- *Backlog*: the newest message was published more than :data:`BACKLOG` seconds ago.  The window is the whole share.
- *Flow*: messages come.  The window is the number that comes, at the rate of the last reads, in :data:`SPAN`, or in the
  age of the newest message if that is longer.
- *Silence*: nothing came for :data:`SPAN`.  The window is 1.  If nsqd holds messages back, a lower RDY makes it flush.

The age needs clocks of nsqd and consumer that agree within :data:`BACKLOG`.  Where they do not, messages still come
soon, because each silence makes nsqd flush.

**Few commands.**  RDY is sent when half of the window is used up or it is twice too large, and goes out with FINs where
there are some.  At the whole share nothing is done per read: ticks look at the counts, ever more rarely.
"""

from __future__ import annotations

from collections import deque

from gnsq_lite.clock import Clock

#: Seconds for which messages may gather at nsqd at a steady rate; also the shortest time between two ticks.
SPAN = 0.001
#: Seconds between two ticks, at most, while messages come and the whole share is used.  A tick wakes the process.
SLOWEST_TICK = 0.016
#: Age in seconds from which a message shows that there is a backlog.
BACKLOG = 0.1
#: Seconds in which the whole share is used after messages expired: nsqd may count them for some time yet.
CAREFUL = 60.0
#: Reads from which the rate is taken.
_READS = 4


class Delivery:
    """Chooses the RDY of one connection within the limit it is given.

    The caller reports each read and each write of answers, but neither while :attr:`is_full`.  After each call it sends
    :attr:`ready` if that has changed, and calls :meth:`tick` in :attr:`tick_after` seconds unless that is None.
    """

    __slots__ = (
        "_careful_until",
        "_clock",
        "_in_flight",
        "_is_slow",
        "_limit",
        "_read_at",
        "_reads",
        "_received",
        "_window",
        "is_full",
        "ready",
        "tick_after",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = self._in_flight = self._received = 0
        self._window = 1
        self._read_at = clock.now()
        #: When the last reads came, and how many messages had come by then.
        self._reads: deque[tuple[float, int]] = deque([(self._read_at, 0)], _READS)
        self._careful_until = float("-inf")
        #: Handlers take longer than SPAN, so RDY goes up at once with what is in flight.
        self._is_slow = False
        #: The RDY that nsqd is to have.
        self.ready = 0
        #: Whether the whole limit is used, so that only ticks are of use; with a limit of one, not even they.
        self.is_full = True
        #: Seconds until the next tick; None: there is nothing to do before something happens.
        self.tick_after: float | None = None

    def set_limit(self, limit: int, in_flight: int) -> None:
        """Change the limit."""
        self._limit, self._in_flight = limit, in_flight
        self._set(min(limit, in_flight + self._window))

    def received(self, count: int, in_flight: int, age: float) -> None:
        """A read brought *count* messages, the last *age* seconds old.

        Where handlers answer within SPAN, RDY follows with the answers, which leave no more in flight than before.
        """
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
        """Answers go out now, and leave *in_flight*; the RDY goes with them."""
        self._in_flight = in_flight
        if not in_flight and self._clock.now() - self._read_at < SPAN:
            self._is_slow = False
        self._adjust()

    def expired(self, in_flight: int) -> None:
        """Messages are counted in flight no more, but perhaps by nsqd."""
        self._in_flight, self._careful_until = in_flight, self._clock.now() + CAREFUL
        self._set(self._limit)
        self.tick_after = CAREFUL

    def tick(self, received: int, in_flight: int, age: float) -> None:
        """Look at the counts: *received* messages since the connection was opened.

        *age* is of the last one, when it was read.
        """
        now = self._clock.now()
        if now < self._careful_until:
            self.tick_after = self._careful_until - now
            return
        self._in_flight = in_flight
        count, elapsed = received - self._received, now - self._read_at
        if self.is_full and count and self._limit > 1:
            self._received, self._read_at = received, now
            self._flow(elapsed, 2 * count, age)  # twice: a share that is nearly used up is not left
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
        """Choose the window by the rate and the age of the messages."""
        # So many may wait at nsqd as come in the age of the newest; reading at the rate of publishes would leave them.
        waiting = self._limit if age > BACKLOG else int(max(SPAN, age) * count / max(seconds, 1e-6))
        self._window = max(1, min(waiting, self._limit))

    def _adjust(self) -> None:
        """Change RDY where half of the window is used up, or it is twice too large."""
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
