"""A Reader's flow control in its loop: the RDY of every connection, backoff, and the rate limit.

The policies decide (:mod:`gnsq_lite.policy`); what is here tells them what happened and carries out what they say.
Everything runs in the loop's thread.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event, wait_or_set
from gnsq_lite.policy.backoff import Backoff, Phase
from gnsq_lite.policy.pace import Pace
from gnsq_lite.policy.rate import RateLimit
from gnsq_lite.policy.rdy import ReadyAllocator, SetReady

log = logging.getLogger("gnsq_lite.reader")

#: Seconds between two looks at silent connections and late messages, at least.
_CHECK_EVERY = 1.0
#: RDY of an nsqd that did not say how much it takes: its default (``--max-rdy-count``).
_DEFAULT_MAX_RDY = 2500


class FlowControl:
    """Flow control of one Reader.

    Args:
        send_ready: Called with (endpoint, RDY) for a connection that is to be told.
        on_backoff: Called with the seconds of a pause that begins, and with 0.0 when backoff is over.
        count_successes: Returns how many messages the Reader's handlers finished; from any thread.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        clock: Clock,
        rng: random.Random,
        send_ready: Callable[[Endpoint, int], None],
        on_backoff: Callable[[float], None],
        count_successes: Callable[[], int],
    ) -> None:
        self._settings, self._clock = settings, clock
        self._send_ready, self._on_backoff = send_ready, on_backoff
        self.count_successes = count_successes
        self.allocator = ReadyAllocator(
            settings.max_in_flight,
            clock=clock,
            rng=rng,
            idle_timeout=settings.rdy_idle_timeout,
            low_ready_timeout=settings.rdy_low_timeout,
        )
        self._pace: Pace[Endpoint] = Pace(clock)
        self._most: dict[Endpoint, int] = {}
        self.backoff = Backoff(settings.backoff, clock=clock, rng=rng)
        #: As it was set last, paused or not.
        self.max_in_flight = settings.max_in_flight
        self.paused = False
        #: What a rate limit leaves of it; None: there is no such limit.
        self._allowed: int | None = None
        per_second = settings.limits.per_second
        self.rate = None if per_second is None else Pacing(per_second, clock, self._set_allowed)
        #: Whether a RDY may follow from what comes and goes, so that connections tell of it.
        self.watches = self.rate is not None
        self._wake = Event()
        self._ticks_at = self._looks_at = 0.0

    def retire(self) -> None:
        """Decide nothing any more: another one has taken over, and connections that are closed still report here."""
        self._send_ready, self._on_backoff = _ignore, _ignore

    # -- what happened

    def joined(self, connection: Subscribed) -> None:
        """A connection is subscribed."""
        settings, endpoint, negotiated = self._settings, connection.endpoint, connection.negotiated
        limit = negotiated.max_rdy_count if negotiated is not None else _DEFAULT_MAX_RDY
        own = settings.dialect.ready_limit(settings.topic, endpoint)
        counts_down = negotiated is not None and not negotiated.negotiated
        most = self._most[endpoint] = limit if own is None else min(own, limit)
        add = partial(self.allocator.add, counts_down=counts_down)
        self._apply(add, endpoint, most, connection.in_flight)
        self._wake.set()

    def parted(self, endpoint: Endpoint) -> None:
        """A connection is gone."""
        self._pace.remove(endpoint)
        self._apply(self.allocator.remove, endpoint)
        if not self.allocator.keys and self.backoff.phase is Phase.PROBING:
            self._wake.set()

    def received(self, endpoint: Endpoint, count: int) -> None:
        """A read brought so many messages."""
        self._apply(self.allocator.received, endpoint, count)
        if self.rate is not None:
            self.rate.received(count)

    def answered(self, endpoint: Endpoint, answered: int, expired: int, *, success: bool) -> None:
        """So many messages are in flight no more; a success may end backoff (BACK-2)."""
        if self._pace.limits:
            self._pace.answered(endpoint, answered)
        self._apply(self.allocator.answered, endpoint, answered + expired)
        if success and self.backoff.level:
            self._outcome(True, self.count_successes())

    def stalled(self, connection: Subscribed, count: int, running: int) -> None:
        """So many messages expired before a handler began them: its RDY goes down to what moves."""
        endpoint = connection.endpoint
        size = self._pace.stalled(endpoint, self._most[endpoint], max(0, running), connection.msg_timeout)
        text = "%s: %d messages waited for a handler until their time was over; RDY %d at most until handlers keep up"
        log_safely(
            log, logging.WARNING, text, connection.address, count, size, extra=self._settings.log_fields(endpoint)
        )
        self._apply(self.allocator.set_max_rdy_count, endpoint, size)

    def rest(self, endpoint: Endpoint, resting: bool) -> None:
        """The partition's failed message waits for its delay, or for it no more: the others go on (YZ-6)."""
        self._apply(self.allocator.rest, endpoint, resting)

    def failed(self, successes: int) -> None:
        """A message failed after so many *successes* (BACK-1)."""
        if self._settings.backoff.enabled:
            self._outcome(False, successes)

    def _outcome(self, success: bool, successes: int) -> None:
        before, fields = self.backoff.phase, self._settings.log_fields()
        after = self.backoff.record(success, successes)
        if self.backoff.strategy_error is not None:
            log_safely(log, logging.ERROR, "the backoff strategy is not used: %s", self.backoff.strategy_error)
        if after is before:
            return
        if after is Phase.PAUSED:
            self._apply(self.allocator.pause)
            resume_at = self.backoff.resume_at
            pause = max(0.0, resume_at - self._clock.now()) if resume_at is not None else 0.0
            said = "backing off for %.1f s (level %d)"
            log_safely(log, logging.WARNING, said, pause, self.backoff.level, extra=fields)
            self._on_backoff(pause)
            self._wake.set()
        elif after is Phase.FLOWING:
            log_safely(log, logging.INFO, "backoff is over", extra=fields)
            self._apply(self.allocator.resume)
            self._on_backoff(0.0)

    # -- what is wanted

    def set_max_in_flight(self, count: int) -> None:
        """Change it (RDY-8)."""
        self.max_in_flight = count
        self._resize()

    def set_paused(self, paused: bool) -> None:
        """RDY 0 everywhere, or back."""
        self.paused = paused
        self._resize()

    def _set_allowed(self, count: int) -> None:
        """Let no more than *count* messages be in flight for now, for the sake of the rate limit."""
        self._allowed = count
        self._resize()

    def _resize(self) -> None:
        count = self.max_in_flight if self._allowed is None else min(self._allowed, self.max_in_flight)
        self._apply(self.allocator.set_max_in_flight, 0 if self.paused else count)
        self._wake.set()

    def is_starved(self) -> bool:
        """RDY-7."""
        return self.allocator.is_starved()

    # -- ticking

    def run(self, look_around: Callable[[float], bool]) -> None:
        """Tick until killed: redistribution, the end of a pause.

        *look_around* is called once a second, with the time, to look at connections and late messages; it returns
        whether a handler is free and nothing waits for one.
        """
        while True:
            now = self._clock.now()
            due = [self._looks_at]
            if self.allocator.next_tick is not None:
                due.append(self.allocator.next_tick)
            if self.backoff.phase is Phase.PAUSED and self.backoff.resume_at is not None:
                due.append(self.backoff.resume_at)
            self._ticks_at = min(due)
            wait_or_set(self._wake, max(0.001, self._ticks_at - now))
            self._wake.clear()
            self._tick(look_around)

    def _tick(self, look_around: Callable[[float], bool]) -> None:
        now = self._clock.now()
        if now >= self._looks_at:  # never sooner: what is the same at two looks is taken to stay so
            self._looks_at = now + _CHECK_EVERY
            is_idle = look_around(now)
            for endpoint, size in self._pace.look(is_idle):
                self._apply(self.allocator.set_max_rdy_count, endpoint, size)
        if self.backoff.phase is Phase.PAUSED:
            self.backoff.tick()
        if self.allocator.phase is not self.backoff.phase:  # it is time to probe
            allocator = self.allocator
            changes = {Phase.PAUSED: allocator.pause, Phase.PROBING: allocator.probe, Phase.FLOWING: allocator.resume}
            self._apply(changes[self.backoff.phase])
        self._apply(self.allocator.tick)

    def _apply(self, decide: Callable[..., Iterable[SetReady]], *about: Any) -> None:
        for decision in decide(*about):
            self._send_ready(decision.key, decision.count)  # type: ignore[arg-type]
        self._watch()
        next_tick = self.allocator.next_tick
        if next_tick is not None and next_tick < self._ticks_at:
            self._wake.set()

    def _watch(self) -> None:
        # In backoff the allocator watches, as nearly all wait for RDY.
        self.watches = self.rate is not None or bool(self._pace.limits) or self.allocator.watches


def _ignore(*about: object) -> None:
    pass


class Pacing:
    """A Reader's rate limit: what may be in flight goes down as messages come, and up again with time.

    *set_allowed* is called with what may be in flight, when that changes.
    """

    def __init__(self, per_second: float, clock: Clock, set_allowed: Callable[[int], None]) -> None:
        self._limit = RateLimit(per_second, clock)
        self._clock, self._set_allowed = clock, set_allowed
        self._came = Event()
        self._told: int | None = None

    def received(self, count: int) -> None:
        """A read brought so many.  The RDY that this calls for goes out before their answers."""
        self._limit.received(count)
        self._came.set()
        self._tell()

    def run(self) -> None:
        """Allow more when it is time, until killed."""
        while True:
            self._tell()
            due = self._limit.next_tick
            self._came.clear()
            wait_or_set(self._came, None if due is None else max(0.001, due - self._clock.now()))
            self._limit.tick()

    def _tell(self) -> None:
        allowed = self._limit.allowed
        if allowed != self._told:
            self._told = allowed
            self._set_allowed(allowed)
