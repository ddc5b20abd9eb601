"""A Reader's flow control in its loop: the RDY of every connection, backoff, and the rate limit.

This module reports events to the policies (:mod:`gnsq_lite.policy`) and executes their decisions.  Everything runs in
the loop's thread.

Backoff pauses all connections of the Reader.  With Youzan's NSQ it pauses only the connections of the failed message's
partition, because a message that fails repeatedly must not stop the other partitions.
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

log = logging.getLogger("gnsq_lite.reader")

#: Minimum seconds between two checks for silent connections, late messages and handlers over their time limit.
_CHECK_EVERY = 1.0


class FlowControlled(Hashable, Protocol):
    """The part of a connection that flow control uses."""

    endpoint: Endpoint
    max_rdy_count: int

    received_at: float

    @property
    def in_flight(self) -> int:
        """Messages in flight."""

    @property
    def succeeded(self) -> int:
        """Number of finished messages, including messages whose FIN is queued."""

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
        #: Maximum RDY that nsqd accepts on each connection.
        self._most: dict[FlowControlled, int] = {}
        #: The same maximum, but lower while handlers are too slow (see :meth:`lower_limit`).
        self._lowered: dict[FlowControlled, int] = {}
        self._make_backoff = partial(Backoff, settings.backoff, clock=clock, rng=rng)
        #: The backoff of each partition.  Connections without a partition share the key None.
        self.backoffs: dict[int | None, Backoff] = {None: self._make_backoff()}
        #: Number of messages finished on connections that are closed now, by partition.
        self._succeeded_before: Counter[int | None] = Counter()
        #: Value of the option.  A pause does not change it.
        self.max_in_flight = settings.max_in_flight
        self.paused = False
        per_second = settings.limits.per_second
        self._rate = None if per_second is None else RateLimit(per_second, clock)
        #: Number of messages in flight that the rate limit allows; None without a rate limit.
        self._allowed = self._rate.allowed if self._rate is not None else None
        #: Whether connections must report messages and answers, because these reports may change a RDY.
        self.watches = self._rate is not None
        self._wake = Event()
        self._next_wake = self._next_check = 0.0
        self._resize()

    # -- events

    def joined(self, connection: FlowControlled) -> None:
        """Add a subscribed connection."""
        settings, limit = self._settings, connection.max_rdy_count
        # An ordered channel sends one message at a time for any RDY (YZ-6).
        most = min(1, limit) if settings.dialect.is_ordered(settings.topic) else limit
        self._most[connection] = self._lowered[connection] = most
        self.backoffs.setdefault(connection.endpoint.partition, self._make_backoff())
        self._apply(self.allocator.add, connection, self._limit(connection), connection)
        self._wake.set()

    def parted(self, connection: FlowControlled) -> None:
        """Remove a closed connection."""
        self._most.pop(connection, None)  # after Consumer.reset() the connection belongs to another FlowControl
        self._lowered.pop(connection, None)
        self._succeeded_before[connection.endpoint.partition] += connection.succeeded
        self._apply(self.allocator.remove, connection)

    def received(self, connection: FlowControlled, count: int) -> None:
        """Record a read of *count* messages.

        A connection calls this if :attr:`watches` is true or if it has more messages in flight than its share.
        """
        self.allocator.received(connection)
        if self._rate is not None:
            self._rate.received(count)
            self._apply_rate()

    def answered(self, connection: FlowControlled, count: int, *, success: bool) -> None:
        """Record that *count* messages were answered or expired.  A FIN among them (*success*) may end backoff."""
        self._apply(self.allocator.answered, connection, count)
        if success and self.backoffs[connection.endpoint.partition].level:
            self._outcome(connection.endpoint, True, self.successes(connection))

    def lower_limit(self, connection: FlowControlled, count: int, running: int) -> None:
        """Lower the maximum RDY of *connection*, because *count* messages expired in the queue (MSG-5).

        The new maximum is at most *running*, the number of the connection's unanswered messages in running handlers.
        While a handler is free and no message is queued, the maximum doubles once a second, at first from 0 to 1.
        """
        size = self._lowered[connection] = min(self._lowered[connection], running)
        text = "%s: %d messages timed out before a handler began them; RDY is at most %d until handlers are fast enough"
        fields = self._settings.log_fields(connection.endpoint)
        log_safely(log, logging.WARNING, text, connection.endpoint, count, size, extra=fields)
        self._set_limit(connection)

    def _raise_lowered(self) -> None:
        for connection, size in self._lowered.items():
            if size < self._most[connection]:
                self._lowered[connection] = min(self._most[connection], max(1, 2 * size))
                self._set_limit(connection)

    def rest(self, connection: FlowControlled, resting: bool) -> None:
        """Pause or resume an ordered partition, whose failed message is held for its delay (YZ-6)."""
        self._apply(self.allocator.rest, connection, resting)

    def successes(self, connection: FlowControlled) -> int:
        """Return the number of finished messages on all connections with the same backoff.  Thread-safe."""
        partition = connection.endpoint.partition
        return self._succeeded_before[partition] + sum(each.succeeded for each in self._members(partition))

    def failed(self, connection: FlowControlled, successes: int) -> None:
        """Record a failed message after *successes* finished messages (BACK-1).

        If the failure starts backoff, this method queues RDY 0.  The caller then queues the REQ.
        """
        self._outcome(connection.endpoint, False, successes)

    # -- backoff

    def _members(self, partition: int | None) -> list[FlowControlled]:
        """Return the connections of *partition*, which share one backoff."""
        return [each for each in tuple(self._most) if each.endpoint.partition == partition]

    def _outcome(self, endpoint: Endpoint, success: bool, successes: int) -> None:
        backoff = self.backoffs[endpoint.partition]
        before = backoff.phase
        after = backoff.record(success, successes)
        if after is before:
            return
        self._apply_phase(endpoint.partition)
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

    def _apply_phase(self, partition: int | None) -> None:
        """Set the RDYs for the phase of the backoff of *partition*."""
        if partition is None:
            allocator = self.allocator
            changes = {Phase.PAUSED: allocator.pause, Phase.PROBING: allocator.probe, Phase.FLOWING: allocator.resume}
            self._apply(changes[self.backoffs[None].phase])
        else:
            for connection in self._members(partition):
                self._set_limit(connection)

    def _set_limit(self, connection: FlowControlled) -> None:
        self._apply(self.allocator.set_max_rdy_count, connection, self._limit(connection))

    def _limit(self, connection: FlowControlled) -> int:
        """Return the maximum RDY of a connection now: at most 1 while its partition probes, 0 while it pauses."""
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

    def _apply_rate(self) -> None:
        """Limit max_in_flight to the number that the rate limit allows now."""
        if self._rate is not None and self._rate.allowed != self._allowed:
            self._allowed = self._rate.allowed
            self._resize()

    def _resize(self) -> None:
        count = self.max_in_flight if self._allowed is None else min(self._allowed, self.max_in_flight)
        self._apply(self.allocator.set_max_in_flight, 0 if self.paused else count)
        self._wake.set()

    # -- ticking

    def run(self, every_second: Callable[[float], bool]) -> None:
        """Execute decisions that depend on time, until the greenlet is killed.  Blocks the greenlet.

        Calls *every_second* once a second with the time.  *every_second* returns whether a handler is free and no
        message is queued.
        """
        while True:
            self._wake.clear()
            self._next_wake = self._next_tick()
            self._wake.wait(max(0.001, self._next_wake - self._clock.now()))
            self._tick(every_second)

    def _next_tick(self) -> float:
        due = (
            self._next_check,
            self.allocator.next_tick,
            None if self._rate is None else self._rate.next_tick,
            *(each.resume_at for each in self.backoffs.values()),
        )
        return min(when for when in due if when is not None)

    def _tick(self, every_second: Callable[[float], bool]) -> None:
        now = self._clock.now()
        if now >= self._next_check:  # not earlier, because some checks compare the state with the last check
            self._next_check = now + _CHECK_EVERY
            if every_second(now):
                self._raise_lowered()
        if self._rate is not None:
            self._rate.tick()
            self._apply_rate()
        for partition, backoff in self.backoffs.items():
            if backoff.phase is Phase.PAUSED and backoff.tick() is not Phase.PAUSED:
                self._apply_phase(partition)  # the pause is over: probe
        self._apply(self.allocator.tick)

    def _apply(self, decide: Callable[..., Iterable[SetReady]], *about: Any) -> None:
        for decision in decide(*about):
            cast(FlowControlled, decision.key).set_ready(decision.count)
        is_backing_off = any(each.level for each in self.backoffs.values())
        self.watches = self._rate is not None or self.allocator.watches or is_backing_off
        if self._next_tick() < self._next_wake:
            self._wake.set()
