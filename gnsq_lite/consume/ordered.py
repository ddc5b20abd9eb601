"""A connection whose messages are handled strictly in order (YZ-6).

If a handler fails, only the partition of the message pauses, for the requeue delay but at most until shortly before the
message's deadline.  Then nsqd sends the message again.  Ordered connections do not use the Reader's backoff.

To pass each message from the loop to a handler's thread would cost more than the rest of its work.  If messages come
quickly, the loop lets the thread read (:class:`gnsq_lite.net.read_lease.ReadLease`): the thread sends FIN, waits at
most about 5 ms for the next message, and handles it.  Everything else is the loop's: other frames, other answers, and,
once a second, what arrives while a handler runs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.consume.pools import ThreadPool
from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.consume.unconfirmed import Unconfirmed
from gnsq_lite.errors import ConnectionLost, NSQError
from gnsq_lite.message import Message, claim
from gnsq_lite.net.loop import current_greenlet
from gnsq_lite.net.read_lease import ReadLease
from gnsq_lite.net.stream import EXCHANGE_SIZE, MOMENT
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.policy.ordered import Decision, OrderedPartition
from gnsq_lite.wire import commands

_FIN_LENGTH = len(commands.finish(bytes(16)))
#: If a message has a longer body, a thread would probably read only a part of the next one, which costs more than to
#: read it in the loop.
_LONGEST_BODY = EXCHANGE_SIZE * 3 // 4

log = logging.getLogger("gnsq_lite.reader")


class OrderedConnection(SubscribedConnection):
    """A connection that executes the decisions of an OrderedPartition about each message and each answer.

    The sequence and the counts belong to the loop, or to the thread that holds the lease.

    Args:
        threads: The pool, if its threads may read.
    """

    def __init__(
        self,
        sequence: OrderedPartition,
        unconfirmed: Unconfirmed,
        threads: ThreadPool | None,
        *connection: Any,
        reads_in_hub: bool = False,
    ) -> None:
        super().__init__(*connection, reads_in_hub=reads_in_hub, writes_fins=True)
        self.fins = None  # each FIN must be reported to the sequence
        self._sequence, self._unconfirmed, self._threads = sequence, unconfirmed, threads
        #: Finished messages that the sequence does not know yet.
        self._ended: deque[Message] = deque()
        self._lease = ReadLease(self.loop, self._on_lease_returned)
        #: What the loop does when a thread has released the lease.
        self._postponed: deque[Callable[[], None]] = deque()
        self._finished_at = 0.0  # time of the last FIN
        #: The number of bytes of the thread's FIN that were sent, or nothing while an exception would lose a message.
        self._sent: list[int] = []

    def set_ready(self, count: int) -> None:
        """Set the share of RDY."""
        super().set_ready(count)
        self.fins = None  # SubscribedConnection.set_ready() has set it

    def _on_messages(self, messages: list[Message]) -> None:
        self._report_finished()
        self._count_in(messages)
        for message in messages:
            if self._unconfirmed.is_again(message, self.opened_at or 0.0):
                said = "%s: finished %r without a handler, because a handler finished it before a reconnection"
                log_safely(log, logging.INFO, said, self.address, message.id)
                message.finish()
            self._decide(self._sequence.arrived, message)

    def finish(self, message: Message) -> None:
        """Send FIN.  The loop tells the sequence before it handles the next message.  Thread-safe."""
        with self.loop.guard:
            if self._finish(message) and self._lease.is_granted:
                self.loop.call_soon(self._owns)

    def _finish(self, message: Message) -> bool:
        """Send FIN, and return whether this thread has written it."""
        self._finished_at = self.clock.now()
        self._unconfirmed.finished(message)
        self._ended.append(message)  # before nsqd can send the next message
        if self._write_fin(message):
            return True
        super().finish(message)
        return False

    # -- in a handler's thread that has the lease

    def handled(self, message: Message) -> None:
        """Send FIN.  If the thread can acquire the lease, wait a moment for the next message."""
        threads, lease = self._threads, self._lease
        if threads is None:
            self.finish(message)
            return
        try:
            self._sent = []
            if not (threads.can_spare(1) and lease.acquire(message)):
                self.finish(message)
            elif not self._go_on(message, threads):
                lease.is_granted = False
        except BaseException:  # for example of a timeout decorator, which another thread raises in this one
            lease.is_granted = False
            if sum(self._sent) != _FIN_LENGTH:  # otherwise nothing is lost
                why = "an exception interrupted a handler's thread while it finished a message"
                self.loop.call_soon(partial(self.close, ConnectionLost(self.address, why)))
            raise
        finally:
            has_lease = message in lease.holders
            lease.holders.discard(message)  # one call of C, which no exception of another thread can prevent
            if has_lease:
                lease.report()

    def _go_on(self, message: Message, threads: ThreadPool) -> bool:
        """Send FIN, and queue the next message for this thread.  Return False if the loop must read on."""
        stream: Any = self._stream
        is_busy = self._due or self._is_closing or self._flow.watches or stream.closed is not None or stream.unsent
        if is_busy or self.in_flight != 1 or not self._share:
            self._finish(message)
            return False
        self._unconfirmed.finished(message)
        self._ended.append(message)
        self._finished_by_handlers += 1
        self._finished_at = self.clock.now()
        data = stream.exchange(commands.finish(message.id), self._sent)
        self.read_at = self.clock.now()
        messages = self._decoder.feed_messages(data) if data and stream.closed is None else None
        if messages is None or len(messages) > 1 or self._unconfirmed.is_again(messages[0], self.opened_at or 0.0):
            return False
        self._sent = []
        if not self._sequence.replace(message, messages[0]):
            return False
        self._ended.clear()
        stream.take_read()
        self._count_next(messages)
        threads.take_next(messages[0])
        return True

    # -- in the loop

    def _owns(self) -> bool:
        """Read in the loop.  Return False if a thread reads at this moment: _on_lease_returned() follows."""
        if not self._lease.revoke():
            return False
        if self._stream is not None:
            self._stream.read_in_loop()
        return True

    def _on_lease_returned(self) -> None:
        while self._owns() and self._postponed:  # a decision may let a thread read, which then returns the lease too
            self._postponed.popleft()()
        self._flush()

    def _let_threads_read(self, message: Message) -> None:
        """Let the thread that handles *message*, the only one in flight, read the next one, if that probably pays.

        It pays if messages come quickly and are short, and if the pool has another thread for other messages.
        """
        threads = self._threads
        if threads is None or not self._writes_fins or self.in_flight != 1 or self._is_closing or self._stream is None:
            return
        is_brisk = self.read_at - self._finished_at < MOMENT and len(message.raw_body) <= _LONGEST_BODY
        if is_brisk and threads.can_spare(2):
            self._lease.is_granted = self._stream.let_threads_read()

    def close_if_dead(self, now: float) -> None:
        """Read what has arrived while a handler runs, such as a heartbeat, and close a dead connection."""
        self._on_lease_returned()  # an exception may have ended the thread before it reported the return
        super().close_if_dead(now)

    def expire_overdue(self, now: float) -> list[Message]:
        """Remove and return the messages that timed out at nsqd."""
        return super().expire_overdue(now) if self._owns() else []

    def _report_finished(self) -> None:
        """Report the finished messages to the sequence."""
        while self._ended:
            self._decide(self._sequence.finished, self._ended.popleft())

    def _flush(self) -> None:
        if self._owns():  # otherwise _on_lease_returned() flushes
            super()._flush()
            self._report_finished()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Hold the message for *delay* seconds or until its deadline is near, then send REQ 0.  Ignore *backoff*."""
        wait = self._message_owner.requeue_delay(message, delay)
        with self.loop.guard:
            self._decide_soon(self._sequence.failed, message, wait)

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Queue the answer to an expired message, and report the answer to the sequence."""
        super().answer_late(message, finished=finished)
        self._decide_soon(partial(self._sequence.answered_late, finished=finished), message)

    def close(self, reason: NSQError) -> None:
        """Close at once, and remember the last finished message if nsqd may not have executed its FIN."""
        if not self._lease.revoke() and self._stream is not None:
            self._stream.end_reads()
            self._lease.wait()  # the descriptor must stay open until the thread has left the read
        self._unconfirmed.ended(reason)
        super().close(reason)

    def slow_down(self, command: bytes = b"") -> None:
        """Do nothing: the partition pauses for the delay of the failed message."""

    def handler_returned_unanswered(self, message: Message) -> None:
        """Report the return of a handler that did not answer *message*."""
        self._decide_soon(self._sequence.handler_returned, message)

    def skipped(self, message: Message) -> None:
        """Report that *message* expired before a handler began it."""
        self._decide_soon(self._sequence.expired, message)

    def send_close(self) -> None:
        """Send CLS, and requeue the held message and the waiting messages."""
        super().send_close()
        self._decide(self._close_sequence)

    def _close_sequence(self) -> Iterable[Decision]:
        self._report_finished()
        return self._sequence.close()

    def abandon(self) -> None:
        """Drop the connection in a forked child."""
        self._lease = ReadLease(self.loop, self._on_lease_returned)  # a thread of the parent may hold the old one
        super().abandon()

    def _decide_soon(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        self.loop.call_soon(partial(self._decide, decide, *about))

    def _decide(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        if not self._owns():
            self._postponed.append(partial(self._decide, decide, *about))
        elif self.is_open():  # after the end of the connection, nsqd has requeued its messages
            for decision in decide(*about):
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        message = decision.message
        if decision.action == "handle":
            self._let_threads_read(message)  # before a thread can finish the message
            if self._reads_in_hub or current_greenlet() is not self.loop.hub:
                self._message_owner.handle([message])
            else:
                self.loop.spawn("inline handler", self._message_owner.handle, [message])
        elif decision.action == "hold":
            self._hold(message, decision.seconds)
        elif decision.action == "send_back":
            if claim(message):
                super().requeue(message, 0.0, False)
            else:
                super().answer_late(message, finished=False)
        elif claim(message):
            self._in_flight -= 1
            self._report_answered(1)

    def _hold(self, message: Message, seconds: float) -> None:
        self._flow.rest(self, True)

        def release() -> None:
            timer.close()
            self._decide(self._sequence.release, message)
            if self.is_open():
                self._flow.rest(self, False)

        timer = self.loop.timer(seconds, release)
