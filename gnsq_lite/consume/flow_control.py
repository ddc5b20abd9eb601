"""A Reader's flow control in its loop: the RDY of every connection, backoff, and the rate limit.

The policies decide (:mod:`gnsq_lite.policy`); this module reports to them what happened and carries out what they
return.  Everything runs in the loop's thread.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.consume.in_flight import InFlight
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event, wait_or_set
from gnsq_lite.policy.backoff import Backoff, Phase
from gnsq_lite.policy.rate import RateLimit
from gnsq_lite.policy.rdy import ReadyAllocator, SetReady
from gnsq_lite.wire.identify import Negotiated

log = logging.getLogger("gnsq_lite.reader")

#: Seconds between two looks at silent connections and late messages, at least.
_CHECK_EVERY = 1.0
#: RDY of an nsqd that did not say how much it takes: its default (``--max-rdy-count``).
_DEFAULT_MAX_RDY = 2500


class Controlled(Protocol):
    """A connection, as flow control knows it."""

    endpoint: Endpoint
    negotiated: Negotiated | None
    in_flight: InFlight


class FlowControl:
    """Flow control of one Reader.

    Args:
        send_ready: Called with (endpoint, RDY) for a connection whose share changes.
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
        self._most: dict[Endpoint, int] = {}
        #: The lowered limits of connections whose messages expired before a handler began them.
        self._lowered: dict[Endpoint, int] = {}
        self.backoff = Backoff(settings.backoff, clock=clock, rng=rng)
        #: As it was set last, paused or not.
        self.max_in_flight = settings.max_in_flight
        self.paused = False
        per_second = settings.limits.per_second
        self._rate = None if per_second is None else RateLimit(per_second, clock)
        #: What the rate limit leaves of max_in_flight.
        self._allowed = self._rate.allowed if self._rate is not None else None
        #: Whether a RDY may follow from what comes and goes, so that connections report it.
        self.watches = self._rate is not None
        self._wake = Event()
        self._ticks_at = self._looks_at = 0.0
        self._resize()

    def retire(self) -> None:
        """Decide nothing any more: another one has taken over, and connections that are closed still report here."""
        self._send_ready, self._on_backoff = _ignore, _ignore

    # -- what happened

    def joined(self, connection: Controlled) -> None:
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
        self._lowered.pop(endpoint, None)
        self._apply(self.allocator.remove, endpoint)
        if not self.allocator.keys and self.backoff.phase is Phase.PROBING:
            self._wake.set()

    def received(self, endpoint: Endpoint, count: int) -> None:
        """A read brought *count* messages; called while :attr:`watches`, and for more in flight than the RDY."""
        self._apply(self.allocator.received, endpoint, count)
        if self._rate is not None:
            self._rate.received(count)
            self._follow_rate()

    def answered(self, endpoint: Endpoint, answered: int, expired: int, *, success: bool) -> None:
        """Messages left in flight; called as :meth:`received` is.  A success may end backoff (BACK-2).

        *answered* were answered, at least one by FIN if *success*; nsqd has taken *expired* back.
        """
        self._apply(self.allocator.answered, endpoint, answered + expired)
        if success and self.backoff.level:
            self._outcome(True, self.count_successes())

    def stalled(self, endpoint: Endpoint, count: int, running: int) -> None:
        """*count* messages expired before a handler began them (MSG-5), which cost each an attempt for nothing.

        RDY goes down to the *running* handlers of this connection's messages.  While a handler is free and no message
        waits, it doubles once a second.
        """
        size = self._lowered[endpoint] = min(self._lowered.get(endpoint, self._most[endpoint]), max(0, running))
        text = "%s: %d messages waited for a handler until their time was over; RDY %d at most until handlers keep up"
        fields = self._settings.log_fields(endpoint)
        log_safely(log, logging.WARNING, text, endpoint, count, size, extra=fields)
        self._apply(self.allocator.set_max_rdy_count, endpoint, size)

    def _raise_lowered(self) -> None:
        for endpoint, size in list(self._lowered.items()):
            size = self._lowered[endpoint] = min(self._most[endpoint], max(1, 2 * size))
            if size == self._most[endpoint]:
                del self._lowered[endpoint]
            self._apply(self.allocator.set_max_rdy_count, endpoint, size)

    def rest(self, endpoint: Endpoint, resting: bool) -> None:
        """The partition's failed message waits for its delay, or for it no more: the others go on (YZ-6)."""
        self._apply(self.allocator.rest, endpoint, resting)

    def failed(self, successes: int) -> None:
        """A message failed after so many *successes* (BACK-1): RDY 0, if it follows, goes out before its REQ."""
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

    def _follow_rate(self) -> None:
        """Have no more in flight than the rate limit allows now."""
        if self._rate is not None and self._rate.allowed != self._allowed:
            self._allowed = self._rate.allowed
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
        """Tick until killed: redistribution, the end of a pause, the rate limit.

        *look_around* is called once a second, with the time, to look at connections and late messages; it returns
        whether a handler is free and nothing waits for one.
        """
        while True:
            self._wake.clear()
            self._ticks_at = self._next_tick()
            wait_or_set(self._wake, max(0.001, self._ticks_at - self._clock.now()))
            self._tick(look_around)

    def _next_tick(self) -> float:
        due = (
            self._looks_at,
            self.allocator.next_tick,
            self.backoff.resume_at,
            None if self._rate is None else self._rate.next_tick,
        )
        return min(when for when in due if when is not None)

    def _tick(self, look_around: Callable[[float], bool]) -> None:
        now = self._clock.now()
        if now >= self._looks_at:  # never sooner: what is the same at two looks is taken to stay so
            self._looks_at = now + _CHECK_EVERY
            if look_around(now):
                self._raise_lowered()
        if self._rate is not None:
            self._rate.tick()
            self._follow_rate()
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
        self.watches = self._rate is not None or self.allocator.watches  # in backoff it does: nearly all wait for RDY
        if self._next_tick() < self._ticks_at:
            self._wake.set()


def _ignore(*about: object) -> None:
    pass
