"""A connection whose messages are handled strictly in order (YZ-6).

If a handler fails, only the partition of the message pauses, for the requeue delay but at most until shortly before the
message's deadline.  Then nsqd sends the message again.  Ordered connections do not use the Reader's backoff.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.consume.unconfirmed import Unconfirmed
from gnsq_lite.errors import NSQError
from gnsq_lite.message import Message, claim
from gnsq_lite.net.loop import current_greenlet
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.policy.ordered import Decision, OrderedPartition

log = logging.getLogger("gnsq_lite.reader")


class OrderedConnection(SubscribedConnection):
    """A connection that executes the decisions of an OrderedPartition about each message and each answer."""

    def __init__(
        self, sequence: OrderedPartition, unconfirmed: Unconfirmed, *connection: Any, reads_in_hub: bool = False
    ) -> None:
        super().__init__(*connection, reads_in_hub=reads_in_hub, writes_fins=True)
        self.fins = None  # each FIN must be reported to the sequence
        self._sequence, self._unconfirmed = sequence, unconfirmed
        #: Finished messages that the sequence does not know yet.
        self._ended: deque[Message] = deque()

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
            self._unconfirmed.finished(message)
            self._ended.append(message)  # before nsqd can send the next message
            if not self._write_fin(message):
                super().finish(message)

    handled = finish

    def _report_finished(self) -> None:
        """Report the finished messages to the sequence."""
        while self._ended:
            self._decide(self._sequence.finished, self._ended.popleft())

    def _flush(self) -> None:
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
        self._report_finished()
        self._decide(self._sequence.close)

    def _decide_soon(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        self.loop.call_soon(partial(self._decide, decide, *about))

    def _decide(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        if self.is_open():  # after the end of the connection, nsqd has requeued its messages
            for decision in decide(*about):
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        message = decision.message
        if decision.action == "handle":
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
