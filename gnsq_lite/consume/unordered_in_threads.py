"""A connection without an order whose handlers' threads read where they keep up with it.

With a RDY of one nsqd sends a message after the FIN of the one before: the thread that sends that may read this.

With more of them, the thread that finds the queue empty sends the FINs of all that came, and queues what it reads next:
no other thread has to be woken for either.  It does so on a Reader's only connection, at full RDY, as long as all that
came is handled within a moment.  FINs wait for it meanwhile, until the delivery's next tick at most: milliseconds.
All else is the loop's, as ever: messages that take longer, other frames, other answers than FIN.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gnsq_lite.consume.read_in_threads import LOOP, MOMENT, NOBODY, ReadInThreads, Threads
from gnsq_lite.errors import NSQConnectionError
from gnsq_lite.message import Message
from gnsq_lite.net.nested import Holding, holds
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.policy.delivery import SLOWEST_TICK
from gnsq_lite.speed import Fins


class UnorderedInThreads(ReadInThreads):
    """Its threads take single messages, or all that a read brings, as RDY is one or more."""

    def __init__(self, threads: Threads, *connection: Any, **options: Any) -> None:
        super().__init__(threads, *connection, **options)
        #: Whether what came last was read by a thread, and no tick has come since.
        self._reads_on = False
        self.fins = self._fins = Fins(self._on_fins)

    def set_ready(self, count: int) -> None:
        """Also: have successes told one by one where RDY is one."""
        with self._lock:
            self._leave_reading()
            super().set_ready(count)
            self.fins = None if count == 1 else self._fins

    def _may_wait(self) -> bool:
        """Also where it is the only thread, if nothing can come elsewhere."""
        return self._threads.can_spare_one() or self._flow.max_in_flight == 1

    def _ends(self, message: Message) -> bool:
        is_alone = self._share == self.in_flight.count == 1 and not (len(self._fins) or self._reqs)
        return is_alone and (self._delivery is None or self._delivery.is_full)

    def _begins(self, message: Message) -> bool:
        return self.fins is None  # else the delivery is to hear of it

    # -- where more than one is in flight, in a handler's thread

    def read_on(self) -> bool:
        """Send FINs, and queue what a read brings; False: that is the loop's."""
        if self._reader > NOBODY or not self._is_lent or self.fins is None:
            return False  # another thread reads, for one
        try:
            return self._send_fins() and self._take_read(self._receive_here())
        except BaseException:
            self._close_for_ended_thread()
            raise

    @holds
    def _send_fins(self) -> bool:
        """Answer all that came, and become the reader; False, where there is more to do than that: the loop goes on."""
        with Holding(), self._lock:
            if self._reader > NOBODY:
                return False
            is_mine = self._is_lent and self._reader == NOBODY
            if not (is_mine and self._is_all_finished() and self._is_calm() and self._is_quick()):
                self._leave_reading()
                return False
            self._reader = native_ident()
            if len(self._fins):
                fins, finished = self._fins.take()
                self._fins.due = False
                self.finished += finished
                self.in_flight.count -= finished
                self._send_here(fins)
        return True

    def _is_all_finished(self) -> bool:
        """Under the lock: whether nothing is to be sent but FINs, and no message is anywhere without one."""
        is_more = self._due or self._reqs or self._out or self._stream.unsent  # type: ignore[union-attr]
        return not is_more and self.in_flight.count == len(self._fins)

    def _is_calm(self) -> bool:
        """Whether no RDY follows from what comes and goes, nothing comes elsewhere, and a tick is to come soon."""
        delivery, flow, timer = self._delivery, self._flow, self._delivery_timer
        is_soon = timer is not None and timer.active and self._look_at - self.clock.now() <= SLOWEST_TICK
        is_full = is_soon and delivery is not None and delivery.is_full
        return is_full and flow.is_alone and not flow.watches and 1 < self._share >= self.in_flight.count

    def _is_quick(self) -> bool:
        """Whether what came last was handled within a moment."""
        return self.clock.now() - self.read_at < MOMENT

    def _leave_reading(self) -> None:
        """Under the lock: have the loop send what waits for a thread, and read."""
        if self._reads_on:
            self._reads_on = False
            self.loop.call_soon(self._flush)

    def _take_read(self, data: bytes | NSQConnectionError | None) -> bool:
        if isinstance(data, bytes) and data and self.fins is not None and self._is_calm():
            self.read_at = self.clock.now()
            self._stream.bytes_in += len(data)  # type: ignore[union-attr]
            come = self._decoder.feed_leading(data)  # not under the lock, as in _only_messages()
            goes_on = self._go_on_with(*come)
            if goes_on is not None:
                return goes_on
        self._reads_on = False
        return super()._take_read(data)

    @holds
    def _go_on_with(self, messages: list[Message], has_other: bool) -> bool | None:
        """Queue these, and leave to the loop what is behind them; or both, where it got more to do.  None: it ended."""
        stream: Any = self._stream
        with Holding(), self._lock:
            self._reads_on = False
            if stream.closed is not None:
                return None
            is_ours = self._is_calm()
            if messages and not is_ours:
                self.loop.call_soon(partial(self._bring, messages))
            elif messages:
                count = self.in_flight.add(messages, self.read_at)
                self._must_wait = count > self._limit.most
                if count > self._share:
                    self.loop.call_soon(partial(self._flow.received, self.endpoint, len(messages)))
                self._reads_on = True
                self._threads.take_on(messages)
            if has_other or self._must_wait or not is_ours:
                self._reader = LOOP
                stream.give(b"")
                return is_ours and bool(messages)
            self._reader = NOBODY
            if not messages:
                self.loop.call_soon(self._go_on_reading)
        return bool(messages)

    def _bring(self, messages: list[Message]) -> None:
        """In the loop: go on with messages as if it had read them."""
        with self._lock:
            if self.is_open():
                self._on_messages(messages)

    def _on_fins(self) -> None:
        """The first of some FINs is queued; in any thread."""
        if not self._reads_on:
            self.loop.call_soon(self._flush)

    # -- in the loop

    def _look_at_delivery(self) -> None:
        """Also: have threads ask this connection what to do, which may be the only one by now."""
        self._threads.read_on = self.read_on
        super()._look_at_delivery()

    def _stop_delivery(self) -> None:
        """Also: FINs wait for a thread only while a tick is to come."""
        with self._lock:
            self._leave_reading()
            super()._stop_delivery()
