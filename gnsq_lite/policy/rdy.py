"""Who gets how much RDY (RDY-1 to RDY-8), and the single RDY 1 of backoff (BACK-2).

**A window, not a countdown.**  Since 0.2.20 nsqd sends while a client has fewer messages in flight than its RDY, and
does not count RDY down (``IsReadyForMessages``, nsqd/client_v2.go @v1.3.0).  So a RDY is sent when the share of a
connection changes and not for each message.  Servers that answer IDENTIFY with a plain OK may count down: they are
added with ``counts_down=True`` and get a fresh RDY when what is left is 0 or under 25 % of the last one (RDY-2).

**What is charged.**  A connection costs ``max(RDY, in flight)``, and the sum over all never grows beyond
``max_in_flight``.  nsqd does not confirm a RDY: for :attr:`settle` seconds after RDY was taken back, messages sent
under the old one may still arrive, and another nsqd must not have been told already.  So what was taken back stays
charged for that long, less what is answered meanwhile, and only then goes to others.

**Shares** (at least one RDY for each connection).  ``max_in_flight // connections`` each, the remainder one each to
some, what a ``max_rdy_count`` leaves over to the others.  A new connection gets RDY 1 at once where that is free, and
its share :attr:`settle` seconds later with everybody's: connections that come together cost one new division, not one
each, and the first one to arrive does not take all.

**Turns** (fewer RDY than connections).  RDY 1 for some; the others wait.  While others wait, a connection that could
have received but did not for ``idle_timeout`` seconds gives its RDY back, and so does any other, idle or not, after
``low_ready_timeout`` seconds.  What is free goes to those that wait, in rounds: all that wait when a round begins, in
random order.

**The bound.**  With n connections, a budget of m RDY, messages answered h seconds after they arrive, and ticks on
time, a connection waits at most ``2 * ceil(n / m) * (low_ready_timeout + settle + h)`` seconds for its turn, whoever
comes or goes meanwhile (n is the most there were); where the others are idle, ``idle_timeout`` stands in for
``low_ready_timeout``.  Two rounds, because it may have begun to wait just after one began; on average it is half of
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gnsq_lite.clock import Clock
from gnsq_lite.policy.chance import Rng, pick, shuffled
from gnsq_lite.policy.shares import even_shares
from gnsq_lite.policy.window import Key, SetReady, Window

__all__ = ["Key", "ReadyAllocator", "SetReady"]


class _Mode(Enum):
    FLOWING = "flowing"
    PAUSED = "paused"
    PROBING = "probing"


class ReadyAllocator:
    """Divides ``max_in_flight`` among connections.  Each method returns the RDY commands to send, in order.

    Reductions come first, and nothing is returned that changes nothing.  The caller tells what happened, once per read
    and once per flush, sends what is returned, and calls :meth:`tick` when :attr:`next_tick` has come; any call may
    move :attr:`next_tick`.  A key stands for one connection, not for an address: what is told about a key that was
    removed is ignored, so late answers do not count for the connection that came after.
    """

    def __init__(
        self,
        max_in_flight: int,
        *,
        clock: Clock,
        rng: Rng,
        idle_timeout: float = 10.0,
        low_ready_timeout: float = 30.0,
        settle: float = 0.1,
    ) -> None:
        """Start with no connection.

        Args:
            idle_timeout: Seconds without a message after which a connection yields to one that waits.
            low_ready_timeout: Seconds after which it yields although it has messages.
            settle: Seconds in which RDY that was taken back has surely reached nsqd, and what nsqd sent before has
                arrived: a few round trips.  Also the time for which changes are gathered.  0: all at once.
        """
        self._clock, self._rng = clock, rng
        self._idle, self._low, self.settle = idle_timeout, low_ready_timeout, settle
        self._max = max(0, max_in_flight)
        self._mode = _Mode.FLOWING
        self._connections: dict[Key, Window] = {}
        self._round: list[Key] = []  # who waits in this round, the next one last
        self._charged = 0  # sum of all charges
        self._owed = self._hungry = False  # someone has less than its share; has nothing at all
        self._turns = False  # RDY goes round
        self._next: float | None = None

    # -- what happened ----------------------------------------------------------------------------------------------

    def add(self, key: Key, max_rdy_count: int, *, counts_down: bool = False) -> list[SetReady]:
        """Take in a connection that nsqd has let subscribe.  Raises ValueError for a key that is in use."""
        if key in self._connections:
            raise ValueError(f"connection {key!r} was added before")
        now = self._clock.now()
        connection = self._connections[key] = Window(key, max(0, max_rdy_count), counts_down=counts_down, now=now)
        grown: list[SetReady] = []
        flowing = self._mode is _Mode.FLOWING and self._max >= len(self._connections)
        if flowing and connection.limit and self._charged < self._max:
            self._grow(connection, 1, now, grown)
        return grown + self._reconsider(now)

    def remove(self, key: Key) -> list[SetReady]:
        """Forget a connection that is gone; what it had goes to the others.  An unknown key is ignored."""
        connection = self._connections.pop(key, None)
        if connection is None:
            return []
        self._charged -= connection.charge
        return self._reconsider(self._clock.now())

    def set_max_in_flight(self, count: int) -> list[SetReady]:
        """Set the budget; 0 stops the flow (RDY-8).  Less than what is in flight: nothing grows until that is down."""
        self._max = max(0, count)
        return self._evaluate(self._clock.now())

    def set_max_rdy_count(self, key: Key, count: int) -> list[SetReady]:
        """Set the limit of one connection (RDY-5).  An unknown key is ignored."""
        connection = self._connections.get(key)
        if connection is None or connection.limit == max(0, count):
            return []
        connection.limit = max(0, count)
        return self._evaluate(self._clock.now())

    def received(self, key: Key, count: int) -> list[SetReady]:
        """Take that *count* messages arrived.  O(1)."""
        connection = self._connections.get(key)
        if connection is None or count <= 0:
            return []
        connection.take(count, self._clock.now())
        changes: list[SetReady] = []
        if connection.in_flight > connection.charge:
            self._charged += connection.recharge()
        if connection.counts_down:
            connection.refresh(changes)
        return changes

    def answered(self, key: Key, count: int) -> list[SetReady]:
        """Take that *count* messages are out of flight: answered, or given up by nsqd.  O(1) unless :attr:`pending`."""
        connection = self._connections.get(key)
        if connection is None or count <= 0:
            return []
        if self._turns and connection.in_flight >= connection.size:
            connection.active = self._clock.now()  # it could not receive until now: that was not idleness
        connection.give(count)
        self._charged += connection.recharge()
        changes: list[SetReady] = []
        if connection.counts_down:
            connection.refresh(changes)
        if self._owed and self._charged < self._max:
            now = self._clock.now()
            # Who has nothing is served at once; who has a part gets the rest in few commands, not one per answer.
            changes += self._evaluate(now) if self._hungry else self._reconsider(now)
        return changes

    def pause(self) -> list[SetReady]:
        """Stop the flow: RDY 0 to all, until :meth:`probe` or :meth:`resume` (BACK-1)."""
        self._mode = _Mode.PAUSED
        return self._evaluate(self._clock.now())

    def probe(self) -> list[SetReady]:
        """RDY 1 on one random connection, 0 on all others (BACK-2).  The budget rules: with 0 there is no probe.

        A connection with nothing in flight is preferred, as nsqd sends nothing to another.  One that stays idle for
        ``idle_timeout`` hands the RDY on.
        """
        now = self._clock.now()
        cut: list[SetReady] = []
        ready = [c for c in self._connections.values() if c.size and c.limit]
        if self._mode is not _Mode.PROBING and ready:
            chosen = pick(self._rng, [c for c in ready if not c.in_flight] or ready)
            for connection in ready:
                if connection is not chosen:
                    self._shrink(connection, 0, now, cut)
        self._mode = _Mode.PROBING
        return cut + self._evaluate(now)

    def resume(self) -> list[SetReady]:
        """Let all flow again (BACK-4)."""
        self._mode = _Mode.FLOWING
        return self._evaluate(self._clock.now())

    def tick(self) -> list[SetReady]:
        """Do what time has made due.  Cheap when nothing is."""
        now = self._clock.now()
        if self._next is None or now < self._next:
            return []
        return self._evaluate(now)

    # -- what is so -------------------------------------------------------------------------------------------------

    @property
    def next_tick(self) -> float | None:
        """The clock's time at which :meth:`tick` has something to do; None: nothing, unless something happens."""
        return self._next

    @property
    def pending(self) -> bool:
        """Whether a connection has less than it should, because others still have messages out."""
        return self._owed

    @property
    def keys(self) -> tuple[Key, ...]:
        """The connections, in the order they were added."""
        return tuple(self._connections)

    @property
    def total_ready(self) -> int:
        """The sum of RDY over all connections."""
        return sum(connection.size for connection in self._connections.values())

    @property
    def total_in_flight(self) -> int:
        """The messages in flight over all connections."""
        return sum(connection.in_flight for connection in self._connections.values())

    def ready(self, key: Key) -> int:
        """Return the RDY of a connection: the last one sent; for a server that counts down, RDY + in flight then."""
        return self._connections[key].size

    def in_flight(self, key: Key) -> int:
        """Return the messages in flight of a connection."""
        return self._connections[key].in_flight

    def is_starved(self) -> bool:
        """Return whether a connection has 85 % or more of its RDY in flight: few or no more will come (RDY-7)."""
        return any(c.in_flight > 0 and c.in_flight >= 0.85 * c.size for c in self._connections.values())

    # -- decisions --------------------------------------------------------------------------------------------------

    def _reconsider(self, now: float) -> list[SetReady]:
        """Evaluate once the changes that come together have come."""
        if self.settle <= 0:
            return self._evaluate(now)
        if self._next is None or self._next > now + self.settle:
            self._next = now + self.settle
        return []

    def _evaluate(self, now: float) -> list[SetReady]:
        """Give everybody what it should have, as far as the budget is free, and plan the next tick."""
        cut: list[SetReady] = []
        grown: list[SetReady] = []
        eligible = []
        for connection in self._connections.values():
            if connection.held and now >= connection.held_until:
                connection.held = 0
                self._charged += connection.recharge()
            if connection.limit:
                eligible.append(connection)
            elif connection.size:
                self._shrink(connection, 0, now, cut)
        self._next = None
        if self._mode is _Mode.FLOWING and self._max >= len(eligible):
            self._turns = False
            self._share(now, eligible, cut, grown)
        else:
            if not self._turns:  # from now on others wait: the turns begin
                self._turns = True
                for connection in eligible:
                    connection.since = now
            budget = {_Mode.FLOWING: self._max, _Mode.PAUSED: 0, _Mode.PROBING: min(1, self._max)}[self._mode]
            self._take_turns(now, eligible, budget, cut, grown)
        if self._owed:
            self._wake_by(c.held_until for c in self._connections.values() if c.held)
        return cut + grown

    def _share(self, now: float, eligible: list[Window], cut: list[SetReady], grown: list[SetReady]) -> None:
        shares = even_shares(self._max, [c.limit for c in eligible], [c.size for c in eligible])
        wanting = []
        for connection, share in zip(eligible, shares, strict=True):
            if connection.size > share:
                self._shrink(connection, share, now, cut)
            elif connection.size < share:
                wanting.append((connection, share))
        wanting.sort(key=lambda pair: pair[0].size)
        for position, (connection, share) in enumerate(wanting):
            free = self._max - self._charged
            if free < 0:
                break
            part = -(-free // (len(wanting) - position))
            self._grow(connection, min(share, connection.charge + part), now, grown)
        self._owed = any(connection.size < share for connection, share in wanting)
        self._hungry = any(connection.size == 0 for connection, _ in wanting)

    def _take_turns(
        self, now: float, eligible: list[Window], budget: int, cut: list[SetReady], grown: list[SetReady]
    ) -> None:
        holders = sorted((c for c in eligible if c.size), key=lambda c: c.active, reverse=True)
        for connection in holders[budget:]:
            self._shrink(connection, 0, now, cut)
        del holders[budget:]
        for connection in holders:
            if connection.size > 1:
                self._shrink(connection, 1, now, cut)
        waiting = [c for c in eligible if not c.size]
        # What was given up before, and is not free before an answer, is for those that wait too.
        yielding = self._yielding(holders, len(waiting) - (budget - len(holders)), now)
        self._round = [key for key in self._round if any(c.key == key for c in waiting)]
        for connection in yielding:
            self._shrink(connection, 0, now, cut)
            holders.remove(connection)
        while len(holders) < budget and waiting and self._charged < self._max:
            connection = self._next_in_round(waiting)
            waiting.remove(connection)
            self._grow(connection, 1, now, grown)
            holders.append(connection)
        free = budget - len(holders)
        others = len(eligible) - len(holders)
        self._owed = self._hungry = free > 0 and others > 0
        if others > free:
            self._wake_by(max(now, self._turn_ends(c, now)) for c in holders)

    def _yielding(self, holders: list[Window], wanted: int, now: float) -> list[Window]:
        """Return at most *wanted* connections whose turn is over: idle ones first, then those that had it longest."""
        over = [c for c in holders if now >= self._turn_ends(c, now)]
        over.sort(key=lambda c: (now < self._idle_ends(c, now), c.since))
        return over[: max(0, wanted)]

    def _turn_ends(self, connection: Window, now: float) -> float:
        idle_ends = self._idle_ends(connection, now)
        if self._mode is _Mode.PROBING:  # the message that is out decides, however long it takes
            return idle_ends
        return min(idle_ends, connection.since + self._low)

    def _idle_ends(self, connection: Window, now: float) -> float:
        if connection.in_flight >= connection.size:  # it cannot receive; asked again later
            return now + self._idle
        return connection.active + self._idle

    def _next_in_round(self, waiting: list[Window]) -> Window:
        """Return whose turn it is.  A probe asks first for one to which nsqd can send: with nothing in flight."""
        if not self._round:
            self._round = shuffled(self._rng, [c.key for c in waiting])
        if self._mode is _Mode.PROBING and any(not c.in_flight for c in waiting):
            waiting = [c for c in waiting if not c.in_flight]
            if all(self._connections[key].in_flight for key in self._round):
                return pick(self._rng, waiting)
        while True:
            connection = self._connections[self._round.pop()]
            if connection in waiting:
                return connection

    # -- changes ----------------------------------------------------------------------------------------------------

    def _shrink(self, window: Window, size: int, now: float, out: list[SetReady]) -> None:
        window.shrink(size, now, self.settle, out)
        self._charged += window.recharge()

    def _grow(self, window: Window, size: int, now: float, out: list[SetReady]) -> None:
        if size > window.size:
            window.grow(size, now, out)
            self._charged += window.recharge()

    def _wake_by(self, times: Iterable[float]) -> None:
        for when in times:
            if self._next is None or when < self._next:
                self._next = when
