"""A Reader's flow control in its loop: the RDY of every connection, backoff, and the rate limit.

The policies decide (:mod:`gnsq_lite.policy`); this module reports events to them and executes their decisions.
Everything runs in the loop's thread.

A failure pauses all connections of the Reader.  If connections have partitions, a failure pauses only the connections
of its partition: a message that fails repeatedly must not stop the other partitions.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Protocol, cast

from gnsq_lite.clock import Clock
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event
from gnsq_lite.policy.backoff import Backoff, Phase
from gnsq_lite.policy.rate import RateLimit
from gnsq_lite.policy.rdy import ReadyAllocator, SetReady
from gnsq_lite.wire.identify import Negotiated

log = logging.getLogger("gnsq_lite.reader")

#: Minimum seconds between two checks for silent connections and late messages.
_CHECK_EVERY = 1.0
#: Maximum RDY of an nsqd that does not report its ``--max-rdy-count``: the default of nsqd.
_DEFAULT_MAX_RDY = 2500


class Controlled(Hashable, Protocol):
    """The part of a connection that flow control uses."""

    endpoint: Endpoint
    negotiated: Negotiated | None

    received_at: float

    @property
    def in_flight(self) -> int:
        """Messages in flight."""

    @property
    def succeeded(self) -> int:
        """Number of finished messages."""

    def set_ready(self, count: int) -> None:
        """Set the share of RDY."""


class FlowControl:
    """Flow control of one Reader.

    Args:
        on_backoff: Called with the seconds of each pause when it begins, and with 0.0 when backoff is over.
    """

    def __init__(
        self, settings: ConsumerSettings, clock: Clock, rng: random.Random, on_backoff: Callable[[float], None]
    ) -> None:
        self._settings, self._clock, self._on_backoff = settings, clock, on_backoff
        self.allocator = ReadyAllocator(
            settings.max_in_flight,
            clock=clock,
            rng=rng,
            idle_timeout=settings.rdy_idle_timeout,
            low_ready_timeout=settings.rdy_low_timeout,
        )
        #: Maximum RDY of each connection; and the same, lowered after messages expired before a handler began them.
        self._most: dict[Controlled, int] = {}
        self._lowered: dict[Controlled, int] = {}
        self._make_backoff = partial(Backoff, settings.backoff, clock=clock, rng=rng)
        #: Backoff of each partition; the key None is for connections without partitions.
        self.backoffs: dict[int | None, Backoff] = {None: self._make_backoff()}
        #: Number of messages that were finished on closed connections, by partition.
        self._succeeded_before: Counter[int | None] = Counter()
        #: The configured value, also while paused.
        self.max_in_flight = settings.max_in_flight
        self.paused = False
        per_second = settings.limits.per_second
        self._rate = None if per_second is None else RateLimit(per_second, clock)
        #: Messages in flight that the rate limit allows; None: no rate limit.
        self._allowed = self._rate.allowed if self._rate is not None else None
        #: Whether messages and answers may change a RDY, so that connections must report them.
        self.watches = self._rate is not None
        self._wake = Event()
        self._ticks_at = self._looks_at = 0.0
        self._resize()

    # -- what happened

    def joined(self, connection: Controlled) -> None:
        """Add a subscribed connection."""
        settings, negotiated = self._settings, connection.negotiated
        limit = negotiated.max_rdy_count if negotiated is not None else _DEFAULT_MAX_RDY
        # An ordered channel sends one message at a time for any RDY (YZ-6).
        most = min(1, limit) if settings.dialect.is_ordered(settings.topic) else limit
        self._most[connection] = self._lowered[connection] = most
        self.backoffs.setdefault(connection.endpoint.partition, self._make_backoff())
        self._apply(self.allocator.add, connection, self._limit(connection), connection)
        self._wake.set()

    def parted(self, connection: Controlled) -> None:
        """Remove a closed connection."""
        self._most.pop(connection, None)  # after Consumer.reset() the connections are those of another FlowControl
        self._lowered.pop(connection, None)
        self._succeeded_before[connection.endpoint.partition] += connection.succeeded
        self._apply(self.allocator.remove, connection)

    def received(self, connection: Controlled, count: int) -> None:
        """Record a read of *count* messages.  Called if :attr:`watches` is true or more than RDY are in flight."""
        self.allocator.received(connection)
        if self._rate is not None:
            self._rate.received(count)
            self._follow_rate()

    def answered(self, connection: Controlled, count: int, *, success: bool) -> None:
        """Record that *count* messages were answered or expired; a *success* may end backoff (BACK-2)."""
        self._apply(self.allocator.answered, connection, count)
        if success and self.backoffs[connection.endpoint.partition].level:
            self._outcome(connection.endpoint, True, self.successes(connection))

    def stalled(self, connection: Controlled, count: int, running: int) -> None:
        """Lower the RDY of *connection*: *count* messages expired before a handler began them (MSG-5).

        Each of them lost an attempt.  The new RDY is the number of *running* handlers of this connection's messages.
        While a handler is free and no message waits, RDY doubles once a second.
        """
        size = self._lowered[connection] = min(self._lowered[connection], running)
        text = "%s: %d messages waited for a handler until their time was over; RDY %d at most until handlers keep up"
        fields = self._settings.log_fields(connection.endpoint)
        log_safely(log, logging.WARNING, text, connection.endpoint, count, size, extra=fields)
        self._set_limit(connection)

    def _raise_lowered(self) -> None:
        for connection, size in self._lowered.items():
            if size < self._most[connection]:
                self._lowered[connection] = min(self._most[connection], max(1, 2 * size))
                self._set_limit(connection)

    def rest(self, connection: Controlled, resting: bool) -> None:
        """Pause an ordered partition while its failed message waits for its delay, or end the pause (YZ-6)."""
        self._apply(self.allocator.rest, connection, resting)

    def successes(self, connection: Controlled) -> int:
        """Return the number of finished messages on all connections that share this one's backoff.  Thread-safe."""
        partition = connection.endpoint.partition
        return self._succeeded_before[partition] + sum(each.succeeded for each in self._members(partition))

    def failed(self, connection: Controlled, successes: int) -> None:
        """Record a failed message after *successes* finished messages (BACK-1).  Queues RDY 0 before its REQ."""
        self._outcome(connection.endpoint, False, successes)

    # -- backoff

    def _members(self, partition: int | None) -> list[Controlled]:
        """Return the connections that share the backoff of *partition*."""
        return [each for each in tuple(self._most) if each.endpoint.partition == partition]

    def _outcome(self, endpoint: Endpoint, success: bool, successes: int) -> None:
        backoff = self.backoffs[endpoint.partition]
        before = backoff.phase
        after = backoff.record(success, successes)
        if after is before:
            return
        self._follow(endpoint.partition)
        name = "the Reader" if endpoint.partition is None else f"partition {endpoint.partition}"
        fields = self._settings.log_fields(None if endpoint.partition is None else endpoint)
        if after is Phase.PAUSED:
            pause = backoff.left()
            said = "%s backs off for %.1f s (level %d)"
            log_safely(log, logging.WARNING, said, name, pause, backoff.level, extra=fields)
            self._on_backoff(pause)
            self._wake.set()
        elif after is Phase.FLOWING:
            log_safely(log, logging.INFO, "backoff of %s is over", name, extra=fields)
            self._on_backoff(0.0)

    def _follow(self, partition: int | None) -> None:
        """Set the RDYs for the phase of a backoff."""
        if partition is None:
            allocator = self.allocator
            changes = {Phase.PAUSED: allocator.pause, Phase.PROBING: allocator.probe, Phase.FLOWING: allocator.resume}
            self._apply(changes[self.backoffs[None].phase])
        else:
            for connection in self._members(partition):
                self._set_limit(connection)

    def _set_limit(self, connection: Controlled) -> None:
        self._apply(self.allocator.set_max_rdy_count, connection, self._limit(connection))

    def _limit(self, connection: Controlled) -> int:
        """Return the maximum RDY of a connection now; it is 1 while its partition probes."""
        limit, partition = self._lowered[connection], connection.endpoint.partition
        phase = Phase.FLOWING if partition is None else self.backoffs[partition].phase
        return limit if phase is Phase.FLOWING else min(limit, int(phase is Phase.PROBING))

    # -- settings

    def set_max_in_flight(self, count: int) -> None:
        """Change max_in_flight (RDY-8)."""
        self.max_in_flight = count
        self._resize()

    def set_paused(self, paused: bool) -> None:
        """Set RDY 0 on all connections, or restore their shares."""
        self.paused = paused
        self._resize()

    def _follow_rate(self) -> None:
        """Apply the current limit of the rate limit to max_in_flight."""
        if self._rate is not None and self._rate.allowed != self._allowed:
            self._allowed = self._rate.allowed
            self._resize()

    def _resize(self) -> None:
        count = self.max_in_flight if self._allowed is None else min(self._allowed, self.max_in_flight)
        self._apply(self.allocator.set_max_in_flight, 0 if self.paused else count)
        self._wake.set()

    # -- ticking

    def run(self, every_second: Callable[[float], bool]) -> None:
        """Tick until killed: redistribution, the end of a pause, the rate limit.  Blocks the greenlet.

        *every_second* is called once a second with the time.  It returns whether a handler is free and no message is
        queued.
        """
        while True:
            self._wake.clear()
            self._ticks_at = self._next_tick()
            self._wake.wait(max(0.001, self._ticks_at - self._clock.now()))
            self._tick(every_second)

    def _next_tick(self) -> float:
        due = (
            self._looks_at,
            self.allocator.next_tick,
            None if self._rate is None else self._rate.next_tick,
            *(each.resume_at for each in self.backoffs.values()),
        )
        return min(when for when in due if when is not None)

    def _tick(self, every_second: Callable[[float], bool]) -> None:
        now = self._clock.now()
        if now >= self._looks_at:  # never earlier: callers compare the state of two checks
            self._looks_at = now + _CHECK_EVERY
            if every_second(now):
                self._raise_lowered()
        if self._rate is not None:
            self._rate.tick()
            self._follow_rate()
        for partition, backoff in self.backoffs.items():
            if backoff.phase is Phase.PAUSED and backoff.tick() is not Phase.PAUSED:
                self._follow(partition)  # the pause is over: probe
        self._apply(self.allocator.tick)

    def _apply(self, decide: Callable[..., Iterable[SetReady]], *about: Any) -> None:
        for decision in decide(*about):
            cast(Controlled, decision.key).set_ready(decision.count)
        is_backing_off = any(each.level for each in self.backoffs.values())
        self.watches = self._rate is not None or self.allocator.watches or is_backing_off
        if self._next_tick() < self._ticks_at:
            self._wake.set()
