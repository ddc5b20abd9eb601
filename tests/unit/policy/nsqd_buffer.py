"""A model of one connection: nsqd's queue, output buffer and ticker, the wire, and a Reader that uses Delivery.

The model follows messagePump of nsqd/protocol_v2.go @v1.3.0.  nsqd sends while in flight < RDY, into a buffer.  It
flushes the buffer when the buffer is full, when the ticker fires, and when in flight has reached RDY.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable

from gnsq_lite.policy.delivery import SPAN, Delivery
from tests.fakes import FakeClock

#: Number of messages of 100 bytes in a buffer of 16 KiB, and the seconds that nsqd needs for one message.
BUFFERED, PUMPED_IN = 122, 5e-6


class Wire:
    """Runs one history.

    *ticker* is output_buffer_timeout, or None.  *jitter* returns the seconds that bytes travel in addition to *delay*.
    """

    def __init__(
        self,
        published: Iterable[float],
        *,
        limit: int = 200,
        prompt: bool = True,
        handle: float = 0.0,
        concurrency: int = 100,
        delay: float = 0.0001,
        ticker: float | None = 0.025,
        skew: float = 0.0,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.clock = FakeClock()
        self.delivery = Delivery(self.clock)
        self.prompt, self.handle, self.concurrency = prompt, handle, concurrency
        self.delay, self.ticker, self.skew, self.jitter = delay, ticker, skew, jitter
        self._arrives = {"there": 0.0, "here": 0.0}  # later bytes do not overtake earlier bytes
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = itertools.count()
        self._now = 0.0
        # nsqd's side
        self.ready = self.sent_in_flight = 0
        self.queue: deque[float] = deque()
        self.buffer: list[float] = []
        self._pumping = False
        # the client's side
        self.waiting: deque[float] = deque()
        self.running = 0
        self._answers = self.received = self.in_flight = self.writes = 0
        self._writing = False
        self._tick_at = math.inf
        self._chosen: int | None = None  # the share, if there is no Delivery
        self._sent = 0
        self._newest = 0.0
        #: Seconds from publish to arrival, in order of arrival; number of RDY commands; maximum messages in flight.
        self.latencies: list[float] = []
        self.arrived_at = 0.0
        self.commands: list[int] = []
        self.most_out = 0
        for at in published:
            self._at(at, lambda at=at: self._published(at))  # type: ignore[misc]
        if ticker is not None:
            self._at(ticker * 0.37, self._ticked)
        self.limit(limit)

    # -- time

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._turn), act))

    def _travel(self, where: str, act: Callable[[], None]) -> None:
        self._arrives[where] = max(self._arrives[where], self._now + self.delay + self.jitter())
        self._at(self._arrives[where], act)

    def run(self, until: float) -> Wire:
        events = self._events
        while events and events[0][0] <= until:
            when, _, act = heapq.heappop(events)
            if when > self._now:
                self.clock.advance(when - self._now)
                self._now = when
            act()
        return self

    def change(self, at: float, delay: float) -> Wire:
        """Change the delay of the wire from *at* on."""

        def do() -> None:
            self.delay = delay

        self._at(at, do)
        return self

    def _pass(self, when: float) -> None:
        self.clock.advance(when - self._now)
        self._now = when

    # -- nsqd

    def _published(self, at: float) -> None:
        self.queue.append(at)
        self._pump_soon(0.0)

    def _pump_soon(self, after: float) -> None:
        if not self._pumping:
            self._pumping = True
            self._at(self._now + after, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        while self.queue and self.sent_in_flight < self.ready:
            self.buffer.append(self.queue.popleft())
            self.sent_in_flight += 1
            self.most_out = max(self.most_out, self.sent_in_flight)
            if len(self.buffer) >= BUFFERED:
                self._flush()
            if self._events and self._events[0][0] <= self._now + PUMPED_IN:  # another event precedes the next publish
                self._pump_soon(PUMPED_IN)
                return
            self._pass(self._now + PUMPED_IN)
        if self.sent_in_flight >= self.ready:
            self._flush()

    def _flush(self) -> None:
        if self.buffer:
            batch, self.buffer = self.buffer, []
            self._travel("here", lambda: self._read(batch))

    def _ticked(self) -> None:
        self._flush()
        if self._events:  # or there are no more events
            self._at(self._now + (self.ticker or 0.0), self._ticked)

    def _obey(self, finished: int, ready: int | None) -> None:
        self.sent_in_flight -= finished
        if ready is not None:
            self.ready = ready
        self._pump_soon(0.0)

    # -- the client

    def limit(self, count: int) -> None:
        """Change the share of the connection."""
        if self.prompt:
            self.delivery.set_limit(count, self.in_flight)
            self._follow()
        else:
            self._chosen = count
            self._write_soon()

    def _follow(self) -> None:
        if self.delivery.ready != self._sent:
            self._write_soon()
        self._watch()

    def _watch(self) -> None:
        after = self.delivery.tick_after
        if after is not None:
            self._tick_in(after)
        else:
            self._tick_at = math.inf

    def _tick_in(self, after: float) -> None:
        if self._now + after < self._tick_at - 0.5 * SPAN:
            self._tick_at = at = self._now + after
            self._at(at, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if at != self._tick_at:  # an earlier tick has replaced it
            return
        self._tick_at = math.inf
        self.delivery.tick(self.received, self.in_flight, self.arrived_at - self._newest - self.skew)
        self._follow()

    def _read(self, batch: list[float]) -> None:
        now = self._now
        self.latencies += [now - at for at in batch]
        self.arrived_at = now
        self.received += len(batch)
        self.in_flight += len(batch)
        self.waiting.extend(batch)
        self._at(now, self._work)
        self._newest = batch[-1]
        if self.prompt and not self.delivery.is_full:
            self.delivery.received(len(batch), self.in_flight - self._answers, now - batch[-1] - self.skew)
            self._at(now, self._follow)

    def _work(self) -> None:
        while self.waiting and self.running < self.concurrency:
            self.waiting.popleft()
            self.running += 1
            if self.handle:
                self._at(self._now + self.handle, self._done)
            else:
                self._done()

    def _done(self) -> None:
        self.running -= 1
        self._answers += 1
        self._write_soon()
        if self.handle:
            self._work()

    def _write_soon(self) -> None:
        if not self._writing:  # one write sends all answers of an iteration
            self._writing = True
            self._at(self._now, self._write)

    def _write(self) -> None:
        """Send answers and RDY as SubscribedConnection does."""
        self._writing = False
        ready, self._chosen = self._chosen, None
        count, self._answers = self._answers, 0
        if count:
            self.in_flight -= count
        if self.prompt:
            if count and not self.delivery.is_full:
                self.delivery.answered(self.in_flight)
                self._watch()
            if self.delivery.ready != self._sent:
                self._sent = ready = self.delivery.ready
        if not count and ready is None:
            return
        if ready is not None:
            self.commands.append(ready)
        self.writes += 1
        self._travel("there", lambda: self._obey(count, ready))


def percentile(values: list[float], share: float) -> float:
    """Return the value that is not exceeded by *share* of *values*."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
