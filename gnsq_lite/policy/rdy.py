"""Divides max_in_flight among connections (RDY-1 to RDY-8), and chooses the connection of a probe (BACK-2).

**RDY is a window.**  nsqd sends while a client has fewer messages in flight than its RDY, and does not decrement RDY
(``IsReadyForMessages``, nsqd/client_v2.go @v1.3.0).  So RDY is sent only when the share of a connection changes.  Each
connection counts its messages, and the allocator reads the counts when it decides.

**Charges.**  The charge of a connection is ``max(RDY, in flight)``, and the sum of all charges never grows above
``max_in_flight``.  nsqd does not confirm RDY.  After RDY was lowered, messages that nsqd sent under the old RDY may
still arrive.  So the old RDY, less the messages answered meanwhile, stays charged for :attr:`settle` seconds.  Then
other connections may get the difference.

**Shares** (if there is at least one RDY for each connection).  Each share is ``max_in_flight // connections``, and some
connections get one more.  If ``max_rdy_count`` is below a share, the other connections get the difference.  A new
connection gets RDY 1 at once if the budget allows it.  The new connection gets its share :attr:`settle` seconds later,
when the allocator computes all shares.  So the first of several new connections does not get the whole budget.

**Turns** (if there is less RDY than connections).  Some connections have RDY 1, and the others wait.  While connections
wait, each connection with RDY loses its RDY after ``low_ready_timeout`` seconds.  A connection that could receive but
received no message for ``idle_timeout`` seconds loses its RDY earlier.  Free RDY goes to waiting connections in rounds:
a round serves all connections that wait at its start, in random order.

**The longest wait.**  Let there be at most n connections, a budget of m RDY, and messages that are answered h seconds
after they arrive.  Then a connection waits at most ``2 * ceil(n / m) * (low_ready_timeout + settle + h)`` seconds for
its turn, even if connections open or close meanwhile.  If the other connections are idle, ``idle_timeout`` replaces
``low_ready_timeout``.  The factor is 2 because a connection may begin to wait just after a round began.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.policy.backoff import Phase

Key = Hashable


class Counts(Protocol):
    """The counters of a connection."""

    #: Time of the last read that received messages.
    received_at: float

    @property
    def in_flight(self) -> int:
        """Messages in flight: neither answered nor timed out."""


@dataclass(frozen=True, slots=True)
class SetReady:
    """Send ``RDY count`` on the connection *key*."""

    key: Key
    count: int


class ReadyState:
    """The RDY of one connection.  Some methods append the RDY to send to their argument *out*."""

    def __init__(self, key: Key, limit: int, counts: Counts, now: float) -> None:
        self.key, self.limit, self.counts = key, limit, counts
        self.size = 0  # the last RDY
        self.reserved, self.reserved_until = 0, now  # messages that may still arrive under an earlier, higher RDY
        self.charge = 0  # part of max_in_flight that the connection uses
        self.resting = False  # the client holds the message of an ordered partition: RDY 0, and no charge
        self.was_ready = False  # the first RDY was sent, which is always RDY 1 (RDY-1)
        self.since = self.last_active = now  # start of its turn; last activity besides received messages

    @property
    def in_flight(self) -> int:
        """Messages in flight on the connection."""
        return self.counts.in_flight

    @property
    def active(self) -> float:
        """Time of the last activity, including received messages."""
        return max(self.last_active, self.counts.received_at)

    def recharge(self) -> int:
        """Update the charge.  Return its change."""
        charge = 0 if self.resting else max(self.size, self.in_flight, self.reserved)
        change = charge - self.charge
        self.charge = charge
        return change

    def shrink(self, size: int, now: float, settle: float, out: list[SetReady]) -> None:
        """Lower RDY.  The old value stays charged for *settle* seconds."""
        if settle > 0:
            self.reserved, self.reserved_until = max(self.reserved, self.size), now + settle
        self.size = size
        out.append(SetReady(self.key, size))

    def grow(self, size: int, now: float, out: list[SetReady]) -> None:
        """Raise RDY.  On a new connection, send RDY 1 first."""
        if not self.size:
            self.since = self.last_active = now
        if not self.was_ready and size > 1:
            out.append(SetReady(self.key, 1))
        self.was_ready = True
        self.size = size
        out.append(SetReady(self.key, size))


class ReadyAllocator:
    """Divides ``max_in_flight`` among connections.  Each method returns the RDY commands to send, in order.

    A method returns only changed RDYs, reductions first.  The caller sends the commands, and calls :meth:`tick` at
    :attr:`next_tick`, which any call may change.  The caller reports each read and each write of answers while
    :attr:`watches` is true, and always for a connection with more messages in flight than RDY.  Other reads and writes
    change no RDY.  A key identifies one connection, not an address.  Calls with a removed key are ignored.
    """

    def __init__(
        self,
        max_in_flight: int,
        *,
        clock: Clock,
        rng: Random,
        idle_timeout: float = 10.0,
        low_ready_timeout: float = 30.0,
        settle: float = 0.1,
    ) -> None:
        """Start without connections.

        Args:
            idle_timeout: Seconds without a message after which a connection loses its RDY to a waiting connection.
            low_ready_timeout: Seconds after which a connection loses its RDY even if it receives messages.
            settle: Seconds in which a lowered RDY reaches nsqd and all messages sent before arrive: a few round trips.
                Changes are collected for the same time.  0: apply each change at once.
        """
        self._clock, self._rng = clock, rng
        self._idle, self._low, self.settle = idle_timeout, low_ready_timeout, settle
        self._max = max(0, max_in_flight)
        #: Phase of the backoff.
        self.phase = Phase.FLOWING
        self._connections: dict[Key, ReadyState] = {}
        self._round: list[Key] = []  # connections that wait in this round; the last one is next
        #: Sum of all charges: the most messages that can be in flight under the RDYs that were sent.  The sum is at
        #: most ``max_in_flight``, except for some time after ``max_in_flight`` was lowered.
        self.charged = 0
        #: Whether a connection has less than its share, because other connections use more than theirs.
        self.owed = False
        #: Whether the caller must report messages and answers, because these reports may change a RDY.
        self.watches = False
        self._hungry = False  # a connection that is owed RDY has none at all
        self._turns = False  # connections take turns
        #: Time at which to call :meth:`tick`; None: no tick is needed.
        self.next_tick: float | None = None

    # -- events -----------------------------------------------------------------------------------------------------

    def add(self, key: Key, max_rdy_count: int, counts: Counts) -> list[SetReady]:
        """Add a subscribed connection."""
        now = self._clock.now()
        connection = ReadyState(key, max(0, max_rdy_count), counts, now)
        self._connections[key] = connection
        grown: list[SetReady] = []
        flowing = self.phase is Phase.FLOWING and self._max >= len(self._connections)
        if flowing and connection.limit and self.charged < self._max and self.settle > 0:
            self._grow(connection, 1, now, grown)
        return grown + self._reconsider(now)

    def remove(self, key: Key) -> list[SetReady]:
        """Remove a closed connection, and divide its RDY among the other connections."""
        connection = self._connections.pop(key, None)
        if connection is None:
            return []
        self.charged -= connection.charge
        return self._reconsider(self._clock.now())

    def set_max_in_flight(self, count: int) -> list[SetReady]:
        """Set the budget (RDY-8); 0 pauses.  While more messages are in flight than the budget, no RDY grows."""
        self._max = max(0, count)
        return self._evaluate(self._clock.now())

    def set_max_rdy_count(self, key: Key, count: int) -> list[SetReady]:
        """Set the maximum RDY of one connection (RDY-5)."""
        connection = self._connections.get(key)
        if connection is None or connection.limit == max(0, count):
            return []
        connection.limit = max(0, count)
        return self._evaluate(self._clock.now())

    def rest(self, key: Key, resting: bool) -> list[SetReady]:
        """Set RDY 0 and no charge while the client holds a connection's message (*resting*), or resume (YZ-6).

        Meanwhile other connections may get the RDY.  If connections take turns, another connection loses its RDY when
        this connection resumes.
        """
        connection = self._connections.get(key)
        if connection is None or connection.resting == resting:
            return []
        changes: list[SetReady] = []
        if resting and connection.size:
            connection.shrink(0, self._clock.now(), 0.0, changes)
        connection.resting = resting
        self.charged += connection.recharge()
        self._round = [k for k in self._round if k != key] + ([] if resting else [key])  # the next one
        changes += self._evaluate(self._clock.now())
        holders = [c for c in self._connections.values() if c.size]
        if not resting and self._turns and holders and not connection.size:
            min(holders, key=lambda c: c.since).since = -math.inf
            changes += self._evaluate(self._clock.now())
        return changes

    def received(self, key: Key) -> None:
        """Update the charge after the connection has counted received messages.  O(1)."""
        connection = self._connections.get(key)
        if connection is not None and connection.in_flight > connection.charge and not connection.resting:
            self.charged += connection.recharge()
            self.watches = self.watches or self.charged > self._max

    def answered(self, key: Key, count: int) -> list[SetReady]:
        """Record that *count* messages were answered or timed out.  O(1) unless :attr:`watches`."""
        connection = self._connections.get(key)
        if connection is None or count <= 0:
            return []
        if self._turns and connection.in_flight + count >= connection.size:
            connection.last_active = self._clock.now()  # until now the connection could not receive
        # nsqd reads a lowered RDY before these answers, so nsqd sends no other messages instead under the old RDY.
        connection.reserved = max(0, connection.reserved - count)
        if connection.charge > connection.size:  # if not, the charge is RDY and stays
            self.charged += connection.recharge()
        if self.charged > self._max and connection.size > connection.in_flight:
            return self._evaluate(self._clock.now())  # over the budget, so lower RDY before nsqd sends more messages
        if self.owed and self.charged < self._max:
            now = self._clock.now()
            # A connection without RDY gets it at once.  A connection with a part of its share gets the rest later.
            return self._evaluate(now) if self._hungry else self._reconsider(now)
        if self.watches:
            self._watch()
        return []

    def pause(self) -> list[SetReady]:
        """Set RDY 0 on all connections, until :meth:`probe` or :meth:`resume` (BACK-1)."""
        self.phase = Phase.PAUSED
        return self._evaluate(self._clock.now())

    def probe(self) -> list[SetReady]:
        """Set RDY 1 on one connection, and RDY 0 on all others (BACK-2).  With a budget of 0 there is no probe.

        Of the connections without messages in flight, this is the one that delivered last: on others nsqd sends nothing
        at RDY 1.  If the connection stays idle for ``idle_timeout``, the next one gets RDY 1.
        """
        self.phase, self._round = Phase.PROBING, []
        return self._evaluate(self._clock.now())

    def resume(self) -> list[SetReady]:
        """Give all connections their shares again (BACK-4)."""
        self.phase = Phase.FLOWING
        return self._evaluate(self._clock.now())

    def tick(self) -> list[SetReady]:
        """Do the actions that are due now.  Cheap if none is due."""
        now = self._clock.now()
        if self.next_tick is not None and now >= self.next_tick:
            return self._evaluate(now)
        if self.watches:
            self._release(now)
            self._watch()
        return []

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def total_ready(self) -> int:
        """Sum of RDY over all connections."""
        return sum(connection.size for connection in self._connections.values())

    def ready(self, key: Key) -> int:
        """Return the last RDY of a connection; 0 for an unknown key."""
        connection = self._connections.get(key)
        return 0 if connection is None else connection.size

    def is_starved(self) -> bool:
        """Return whether any connection has messages in flight that use at least 85 % of its RDY (RDY-7)."""
        return any(c.in_flight > 0 and c.in_flight >= 0.85 * c.size for c in self._connections.values())

    # -- decisions --------------------------------------------------------------------------------------------------

    def _reconsider(self, now: float) -> list[SetReady]:
        """Schedule an evaluation after *settle* seconds, so that one evaluation covers several changes."""
        if self.settle <= 0:
            return self._evaluate(now)
        if self.next_tick is None or self.next_tick > now + self.settle:
            self.next_tick = now + self.settle
        return []

    def _evaluate(self, now: float) -> list[SetReady]:
        """Give each connection its RDY, if the budget allows it, and schedule the next tick."""
        self._release(now)
        eligible = [c for c in self._connections.values() if c.limit and not c.resting]
        self.next_tick = None
        if self.phase is Phase.FLOWING and self._max >= len(eligible):
            self._turns = False
            changes = self._share(now, eligible)
        else:
            if not self._turns:  # the turns begin now
                self._turns = True
                for connection in eligible:
                    connection.since = now
            budget = {Phase.FLOWING: self._max, Phase.PAUSED: 0, Phase.PROBING: min(1, self._max)}[self.phase]
            changes = self._take_turns(now, eligible, budget)
        if self.owed or self.charged > self._max:
            self._wake_by(c.reserved_until for c in self._connections.values() if c.reserved)
        self._watch()
        return changes

    def _release(self, now: float) -> None:
        """Update the charges.  *settle* seconds after RDY was lowered, the old RDY is no longer charged."""
        for connection in self._connections.values():
            if connection.reserved and now >= connection.reserved_until:
                connection.reserved = 0
            connection.recharge()
        self.charged = sum(connection.charge for connection in self._connections.values())

    def _watch(self) -> None:
        is_special = self._turns or self.owed or self.charged > self._max
        self.watches = is_special or any(c.reserved for c in self._connections.values())

    def _share(self, now: float, eligible: list[ReadyState]) -> list[SetReady]:
        shares = even_split(self._max, [c.limit for c in eligible], [c.size for c in eligible])
        share_of = dict(zip(eligible, shares, strict=True))
        changes = self._cut(now, share_of)
        wanting = sorted((c for c, share in share_of.items() if c.size < share), key=lambda c: c.size)
        for position, connection in enumerate(wanting):
            free = self._max - self.charged
            if free < 0:
                break
            part = -(-free // (len(wanting) - position))
            self._grow(connection, min(share_of[connection], connection.charge + part), now, changes)
        self.owed = any(c.size < share_of[c] for c in wanting)
        self._hungry = any(c.size == 0 for c in wanting)
        return changes

    def _take_turns(self, now: float, eligible: list[ReadyState], budget: int) -> list[SetReady]:
        holders = sorted((c for c in eligible if c.size), key=lambda c: c.active, reverse=True)[:budget]
        waiting = {c.key: c for c in eligible if c not in holders}
        self._round = [key for key in self._round if key in waiting] or self._rng.sample(list(waiting), len(waiting))
        spare = len(eligible) - budget  # number of connections for which there is no RDY
        yielding = self._yielding(holders, spare, now)
        changes = self._cut(now, {c: 1 for c in holders if c not in yielding})
        holders = [c for c in holders if c.size]
        probed = self.phase is Phase.PROBING and any(c.reserved for c in self._connections.values())
        while len(holders) < budget and waiting and self.charged < self._max and not probed:
            connection = self._next_in_round(waiting)
            self._grow(connection, 1, now, changes)
            holders.append(connection)
        self.owed = self._hungry = len(holders) < budget and len(holders) < len(eligible)
        if spare > 0:
            self._wake_by(max(now, self._turn_ends(c, now)) for c in holders)
        return changes

    def _cut(self, now: float, sizes: Mapping[ReadyState, int]) -> list[SetReady]:
        """Lower RDY to *sizes*, where a missing connection means 0.  Then lower unused RDY until the budget holds.

        The second step prevents further messages if the budget was lowered while messages were in flight.
        """
        keep = {c: min(c.size, sizes.get(c, 0)) for c in self._connections.values()}
        over = sum(max(size, c.in_flight) for c, size in keep.items() if not c.resting) - self._max
        if over > 0:
            for connection in sorted(keep, key=lambda c: c.in_flight - keep[c]):
                unused = max(0, min(over, keep[connection] - connection.in_flight))
                keep[connection] -= unused
                over -= unused
        changes: list[SetReady] = []
        for connection, size in keep.items():
            if size < connection.size:
                connection.shrink(size, now, self.settle, changes)
                self.charged += connection.recharge()
        return changes

    def _grow(self, connection: ReadyState, size: int, now: float, changes: list[SetReady]) -> None:
        if size > connection.size:
            connection.grow(size, now, changes)
            self.charged += connection.recharge()

    def _yielding(self, holders: list[ReadyState], wanted: int, now: float) -> list[ReadyState]:
        """Return at most *wanted* holders whose turn is over.  Idle holders come first, then the longest turns."""
        over = [c for c in holders if now >= self._turn_ends(c, now)]
        over.sort(key=lambda c: (now < self._idle_ends(c, now), c.since))
        return over[: max(0, wanted)]

    def _turn_ends(self, connection: ReadyState, now: float) -> float:
        idle_ends = self._idle_ends(connection, now)
        if self.phase is Phase.PROBING:  # the outcome of the message in flight may take any time
            return idle_ends
        return min(idle_ends, connection.since + self._low)

    def _idle_ends(self, connection: ReadyState, now: float) -> float:
        if connection.in_flight >= connection.size:  # it cannot receive; check again later
            return now + self._idle
        return connection.active + self._idle

    def _next_in_round(self, waiting: dict[Key, ReadyState]) -> ReadyState:
        """Remove and return the next connection of *waiting*.  :meth:`probe` describes the order of a probe."""
        if not self._round:
            self._round = self._rng.sample(list(waiting), len(waiting))
        if self.phase is Phase.PROBING:
            free = [key for key in self._round if not waiting[key].in_flight]
            free = free or [key for key in waiting if not waiting[key].in_flight] or self._round
            key = max(free, key=lambda key: waiting[key].counts.received_at)
            if key in self._round:
                self._round.remove(key)
        else:
            key = self._round.pop()
        return waiting.pop(key)

    def _wake_by(self, times: Iterable[float]) -> None:
        for when in times:
            if when < (math.inf if self.next_tick is None else self.next_tick):
                self.next_tick = when


def even_split(budget: int, limits: Sequence[int], current: Sequence[int]) -> list[int]:
    """Split *budget* evenly.  No share exceeds its limit, and RDY above a limit goes to the other shares.

    Two shares below their limits differ by at most one.  The shares that are largest now (*current*) get one each of
    the remainder, so that a small change of the budget or of the number of shares changes few shares.  The sum is the
    budget, or the sum of the limits if that is less.  If the budget is at least the number of shares, each share with
    a limit above 0 is at least 1.
    """
    shares = list(limits)
    by_limit = sorted(range(len(limits)), key=limits.__getitem__)
    for position, index in enumerate(by_limit):
        takers = len(by_limit) - position
        share, odd = divmod(budget, takers)
        if limits[index] > share:
            rest = sorted(by_limit[position:], key=lambda taker: (-current[taker], taker))
            for rank, taker in enumerate(rest):
                shares[taker] = share + (rank < odd)
            break
        budget -= limits[index]
    return shares
