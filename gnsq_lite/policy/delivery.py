"""How much of its share of RDY a connection uses, so that nsqd sends a message when it has one.

**RDY decides when nsqd sends.**  What nsqd writes to a consumer gathers in a buffer, which is flushed when it is full,
when ``output_buffer_timeout`` ticks, and at once when the consumer is not ready for more: its messages in flight, those
in the buffer included, have reached its RDY (``messagePump``, nsqd/protocol_v2.go @v1.3.0).  With all of a large share
as RDY a message waits for the tick.  With RDY one above what is in flight it comes at once, but each message costs a
round trip.

**The window** is by how many messages RDY is kept above what is in flight: as many as come in :data:`SPAN`, and one
where they come more rarely.  It grows fourfold, up to the whole share, when nsqd used it up and its newest message had
waited there since before the room was given, or one just before it: there is a backlog.  How long they waited shows
only against younger ones, as the clocks may differ; those of a backlog that was published slowly come younger and
younger, each the youngest so far.  What waited for a flush proves no backlog.  So at full speed RDY stays at the share,
none is sent, and nothing is done per read.

**Flushing.**  When nothing is read for a while and nsqd may hold messages back, RDY goes down to one above what is in
flight.  If nsqd holds any, it is not ready for more then, and flushes.

**Few commands.**  RDY is sent when half of the window is used up, or it is twice too large, and goes out with FINs
where there are some.  Where handlers answer at once nothing is sent for a message that is about to be answered.  Where
they take longer, each message would cost two RDY, up when it comes and down when it is answered.  So answers wait for
the next message, for :data:`LONGEST_KEPT` at most: what it takes of the room they give back.
"""

from __future__ import annotations

from collections import deque

from gnsq_lite.clock import Clock

__all__ = ["LONGEST_KEPT", "SPAN", "TICK", "Delivery"]

#: Seconds for which messages may gather at nsqd, at a steady rate.
SPAN = 0.001
#: Seconds between two ticks: the first; the second, once the whole share has been used for the last; a hundredth of
#: that time, where it lasts, up to the third.  A tick wakes the process: 250 a second are some percent of full speed.
TICK, _SLOW_TICK, _SLOWEST_TICK, _LONG_FULL = 0.001, 0.004, 0.02, 0.05
#: Seconds for which answers wait for the next message: twice as long as messages take to come, within these two; and
#: seconds from message to message above which they do not wait.
_SHORTEST_KEPT, LONGEST_KEPT, _SELDOM = 0.02, 0.12, 0.15
#: Seconds a round trip is taken to last at most, and at most four times what the first one took; but where a backlog
#: shows so many longer ones in turn, none of them twice as long as another, for some time as long as those.
_LONGEST_TRIP, _SLOW_TRIPS = 0.5, 5
#: Seconds after which the least age is forgotten, at most twice that; the same for the greatest, in spans.
_REMEMBERED, _JUST_BEFORE = 10.0, 4.0
#: Seconds in which the whole share is used after messages expired: nsqd may count them for some time yet.
_CAREFUL = 60.0


class Least:
    """The least value of the last seconds; where it *ends* with a silence, none from before that."""

    __slots__ = ("_before", "_ends", "_now", "_turns_at", "value")

    def __init__(self, *, ends: bool = False) -> None:
        self._ends = ends
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._before = self._now = self.value = 0.0
        self._turns_at = 0.0  # never, until there is a value

    def add(self, value: float, now: float, remembered: float = _REMEMBERED) -> None:
        """Take a value, which is forgotten after *remembered* seconds, at most twice that."""
        if now >= self._turns_at or not self._turns_at:
            is_stale = not self._turns_at or (self._ends and now >= self._turns_at + remembered)
            self._before, self._now = (value if is_stale else self._now), value
            self._turns_at = now + remembered
        elif value < self._now:
            self._now = value
        self.value = min(self._before, self._now)


class Delivery:
    """Chooses the RDY of one connection within the limit it is given.

    The caller tells what happened, once per read and once per write of answers.  When :attr:`is_full` it tells nothing
    but that answers go out while no tick is to come.  After each call but :meth:`received` it sends what :meth:`take`
    returns, if anything, and calls :meth:`tick` in :attr:`tick_after` seconds, unless that is None: then only a tick
    that is to come while :attr:`is_full` is of use.
    """

    __slots__ = (
        "_age",
        "_allowed",
        "_before_flush",
        "_came",
        "_clock",
        "_coarse",
        "_cut_at",
        "_every",
        "_first_trips",
        "_full_since",
        "_full_until",
        "_in_flight",
        "_kept_since",
        "_longest_trip",
        "_oldest",
        "_openings",
        "_read_at",
        "_received",
        "_seen",
        "_sent",
        "_slow",
        "_slow_until",
        "_span",
        "_trip",
        "_window",
        "is_full",
        "is_quick",
        "limit",
        "ready",
        "tick_after",
    )

    def __init__(self, clock: Clock, trip: float) -> None:
        """Start at a connection whose first answer took *trip* seconds."""
        self._clock = clock
        # The first message that nsqd could not have sent before may have been published long after it could.
        self._longest_trip = self._first_trips = min(_LONGEST_TRIP, 4.0 * trip)
        self._slow: list[float] = []  # longer trips, in turn
        self._slow_until = float("inf")
        self.limit = 0  # the most RDY it may have
        self.ready = 0  # the RDY it is to have
        self._sent = 0  # as :meth:`take` returned it last
        self._came: tuple[int, int, float, float] | None = None  # a read that is not looked at yet
        #: Whether the whole limit is used, so that only ticks are of use; with a limit of one, not even they.
        self.is_full = False
        #: Seconds from the last call to the next tick; None: there is nothing to do, unless something happens.
        self.tick_after: float | None = None
        self._in_flight = 0
        self._received = self._seen = 0  # since the connection was opened; when it was looked last
        self._window = 1
        self._span = SPAN  # or a round trip, where that is longer
        self._every = _LONGEST_TRIP  # seconds from message to message, on average
        self._read_at = clock.now()
        self._allowed = 0  # messages that nsqd could have sent so far, in all
        self._openings: deque[tuple[int, int, float]] = deque()  # allowed before and after, and when
        self._cut_at = float("-inf")  # when less was allowed than before
        self._trip = Least()
        self._age = Least()
        self._oldest = Least(ends=True)  # of ages, negative: of those that came just before
        self._before_flush: int | None = None  # the window before nsqd was made to flush
        self._coarse = 0.0  # seconds by which the last read before that may be earlier than it seems
        #: Whether handlers answer before the next tick, so that their answers show a read soon enough.
        self.is_quick = True
        self._kept_since: float | None = None  # when the first answer began to wait
        self._full_since: float | None = None  # also while nsqd is made to flush in between
        self._full_until = float("-inf")

    @property
    def window(self) -> int:
        """By how many messages RDY is kept above what is in flight, where the limit allows it."""
        return self._window

    def take(self) -> int | None:
        """Return the RDY to send, if any."""
        if self._came is not None:
            self._learn()
        if self.ready == self._sent:
            return None
        self._sent = self.ready
        return self.ready

    def has_changed(self) -> bool:
        """Whether there is a RDY to send."""
        return self.ready != self._sent

    def _plan(self) -> None:
        """Choose when the next tick is."""
        now, after = self._clock.now(), None
        if now >= self._slow_until:  # else a mistake might last for good
            self._slow_until, self._longest_trip = float("inf"), self._first_trips
            self._span = max(SPAN, min(self._trip.value, self._longest_trip))
        if self.limit > 1:
            if self._kept_since is not None:
                after = max(TICK, self._kept_since + self._patience() - now)
            elif self.ready - self._in_flight <= 1 and not self._is_short():
                self._seen = self._received  # as a tick would note
            elif self._full_until > now and self.ready == self.limit:
                after = max(TICK, self._full_until - now)
            else:
                after = self._pause()
        self.tick_after = after

    def _pause(self) -> float:
        full_for = self._read_at - self._full_since if self.is_full and self._full_since is not None else 0.0
        return TICK if full_for < _LONG_FULL else min(max(_SLOW_TICK, full_for / 100.0), _SLOWEST_TICK)

    def set_limit(self, limit: int, in_flight: int) -> None:
        """Change the limit."""
        self._learn()
        before, self.limit, self._in_flight = self.limit, limit, in_flight
        self._fit(self._window)
        if limit > 1 and before > 1 and limit >= self.ready:
            self._adjust()
        else:
            self._send(self._wanted())
        self._plan()

    def received(self, count: int, in_flight: int, age: float, now: float) -> None:
        """A read at *now* brought *count* messages, the last *age* seconds old.

        It is noted, and looked at in the next call of anything, so that handlers begin before that.
        """
        if self._came is not None:
            self._learn()
        self._came = count, in_flight, age, now

    def _learn(self) -> None:
        """Choose by the read that was noted, if any."""
        came, self._came = self._came, None
        if came is not None:
            self._choose(*came)

    def _choose(self, count: int, in_flight: int, age: float, now: float) -> None:
        self._in_flight = in_flight
        gap, self._read_at = now - self._read_at, now
        if self._received:  # the time before the first message says nothing
            weight = max(min(1.0, count / 16.0), 1.0 / self._received)
            self._every += (min(gap, _LONGEST_TRIP) / count - self._every) * weight
        self._received += count
        opened_at, lag, longest = self._used_up(now), 0.0, 0.0
        if opened_at is not None or self._before_flush is not None:
            lag, longest = self._lags(now, age)
        if opened_at is not None:
            self._note_slow(now - opened_at, lag, now)
        if self._before_flush is not None:
            self._flushed(count, now, lag > gap + 2.0 * self._coarse)
        elif opened_at is not None and now - opened_at < 2.0 * self._span and self._waited(longest, now - opened_at):
            self._fit(4 * self._window)
        elif opened_at is not None:
            self._full_since = None
            self._fit(min(int(self._span / max(self._every, 1e-9)), 2 * self._window))
        if not self.is_quick:
            self._adjust()
        self._plan()

    def _note_slow(self, open_for: float, lag: float, now: float) -> None:
        """Notice a link that has become slow: what was there before room was given came a round trip after that."""
        if open_for <= 2.0 * self._span or lag <= open_for + 0.5 * self._span:
            self._slow.clear()
            return
        self._slow.append(open_for)
        if max(self._slow) > 2.0 * min(self._slow):
            del self._slow[:-1]
        if len(self._slow) >= _SLOW_TRIPS:
            trip = min(*self._slow, _LONGEST_TRIP)
            self._slow_until, self._longest_trip, self._span = now + _REMEMBERED, trip, trip
            self._trip.clear()
            self._trip.add(trip, now)
            self._slow.clear()

    def _lags(self, now: float, age: float) -> tuple[float, float]:
        """Return how much older than those that come at once a message is, and the oldest of those just before it."""
        self._age.add(age, now)
        self._oldest.add(-age, now, _JUST_BEFORE * self._span)
        return age - self._age.value, -self._oldest.value - self._age.value

    def _waited(self, longest: float, open_for: float) -> bool:
        """Return whether what came *longest* late was there when the room was given: processes may wake late."""
        return longest > max(0.5 * self._span, open_for - self._trip.value)

    def _flushed(self, count: int, now: float, has_backlog: bool) -> None:
        """Take the first read since nsqd was made to flush: it was busy, or held these back, or they came later."""
        before, self._before_flush = self._before_flush or 1, None
        if has_backlog:  # its newest message was there when the one before was read
            self._fit(before)
        else:
            self._oldest.clear()
            self._full_since = None
            self._fit(min(before // 2, 2 * count) if now - self._cut_at < 2.0 * self._span else 1)

    def _used_up(self, now: float) -> float | None:
        """Return when nsqd got the room that is used up now; None where it still has some.

        The first message that it could not have sent before shows how long a round trip takes.
        """
        used_up, openings, received = None, self._openings, self._received
        while openings and received > openings[0][0]:
            _, allowed, at = openings[0]
            if at > self._cut_at + 2.0 * self._span:  # else nsqd may have sent it before it knew of the cut
                self._trip.add(now - at, now)
                self._span = max(SPAN, min(self._trip.value, self._longest_trip))
            if received < allowed:
                break
            openings.popleft()
            used_up = at if received == allowed or not openings else None
        return used_up

    def keeps(self, in_flight: int, answers: int) -> bool:
        """Return whether *answers*, to some of *in_flight*, wait: for the next message, or the next tick.

        They do where they would cost a RDY, and a message that comes meanwhile is sent at once; not after a silence.
        """
        if self._came is not None:
            self._learn()
        if not answers or self.ready != self._sent:
            return False
        now, patience = self._clock.now(), self._patience()
        if in_flight == answers and now - self._read_at < TICK:
            self.is_quick = True  # also where some waited: handlers need them to wait no more
            return False
        if self.limit <= 1 or not self._window == self.ready - in_flight == 1 or self._every > _SELDOM:
            return False
        if now < self._full_until or now - self._read_at > 2.0 * patience:
            return False
        if self._kept_since is None:
            self._kept_since = now
        self._plan()
        return now - self._kept_since < patience - TICK / 2

    def _patience(self) -> float:
        return min(max(_SHORTEST_KEPT, 2.0 * self._every), LONGEST_KEPT)

    def answered(self, in_flight: int) -> None:
        """Answers go out now, and leave *in_flight*; the RDY to send goes with them."""
        if self._came is not None:
            self._learn()
        now = self._clock.now()
        self._in_flight, self._kept_since = in_flight, None
        if not self.is_full:
            self._allow(now)
            if not in_flight and now - self._read_at < TICK:
                self.is_quick = True
            self._adjust()
        self._plan()

    def expired(self, in_flight: int) -> None:
        """Messages are counted in flight no more, but perhaps by nsqd."""
        self._learn()
        self._in_flight = in_flight
        self._full_until = self._clock.now() + _CAREFUL
        self._adjust()
        self._plan()

    def tick(self, received: int, in_flight: int) -> None:
        """It is time to look; *received*: messages since the connection was opened."""
        self._learn()
        self._in_flight = in_flight
        if self.limit > 1:
            self._look(received, in_flight)
        self._plan()

    def _look(self, received: int, in_flight: int) -> None:
        if not self.is_full and self._is_short():
            self.is_quick = False
            self._adjust()
            return
        now = self._clock.now()
        if received != self._seen:  # or what has come waits to be read: this thread was busy
            if self.is_full:
                self._read_at = now
            self._seen = self._received = received
        elif now - self._read_at >= 2.0 * self._span and now >= self._full_until and self.ready - in_flight > 1:
            self._before_flush, self._coarse = self._window, max(_SLOW_TICK, self._pause())
            self._fit(1)
            self._send(in_flight + 1)

    def _allow(self, now: float) -> None:
        """Take how much nsqd may send from now on."""
        allowed = self._received - self._in_flight + self.ready
        if allowed < self._allowed:
            self._cut_at = now
            self._openings.clear()
            self._openings.append((allowed - 1, allowed, now))
        elif allowed > self._allowed:
            self._openings.append((self._allowed, allowed, now))
        self._allowed = allowed

    def _fit(self, window: int) -> None:
        self._window = max(1, min(window, self.limit))
        is_full = 1 < self.limit == self._window
        if is_full and self._full_since is None:
            self._full_since = self._read_at
        self.is_full = self.limit <= 1 or (is_full and self.ready == self.limit)

    def _is_short(self) -> bool:
        """Whether nsqd may send so little that it should get a RDY."""
        little = 2 * (self.ready - self._in_flight) <= self._window
        return self.ready < self.limit and (little or self._clock.now() < self._full_until)

    def _wanted(self) -> int:
        if self.limit <= 1 or self._clock.now() < self._full_until:
            return self.limit
        return min(self.limit, self._in_flight + self._window)

    def _adjust(self) -> None:
        if self.limit <= 1:
            return
        wanted = self._wanted()
        if self._is_short() if wanted > self.ready else self.ready - self._in_flight >= 2 * self._window:
            self._send(wanted)

    def _send(self, count: int) -> None:
        if count != self.ready:
            self.ready = count
            self._allow(self._clock.now())
            self._fit(self._window)
