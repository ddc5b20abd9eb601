"""A connection whose messages are handled strictly in order (YZ-6).

A failure pauses its partition and no other, as long as the failed message waits for its delay; that message, sent
again, is the probe.  So the Reader's backoff has no part in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.message import Message, claim
from gnsq_lite.net.loop import current_greenlet
from gnsq_lite.policy.ordered import Decision, Handle, Hold, OrderedPartition, SendBack


class OrderedConnection(Subscribed):
    """Carries out what the policy, an OrderedPartition, decides for each message and each answer."""

    def __init__(self, sequence: OrderedPartition, *connection: Any, reads_in_hub: bool = False) -> None:
        super().__init__(*connection, reads_in_hub=reads_in_hub, writes_fins=True)
        self.fins = None  # each FIN moves the sequence on
        self._sequence = sequence
        #: Finished messages that the sequence does not know of yet.
        self._ended: deque[Message] = deque()

    def set_ready(self, count: int) -> None:
        """Queue RDY; each FIN still moves the sequence on."""
        super().set_ready(count)
        self.fins = None

    def _on_messages(self, messages: list[Message]) -> None:
        self._end_finished()
        self._count_in(messages)
        for message in messages:
            self._ask(self._sequence.arrived, message)

    def finish(self, message: Message) -> None:
        """Send FIN; from any thread.  The sequence moves on before it takes another message, or with the next write."""
        with self.loop.guard:
            self._ended.append(message)  # before nsqd can send the next one
            if not self._write_fin(message):
                super().finish(message)

    handled = finish

    def _end_finished(self) -> None:
        """Tell the sequence of the messages that were finished."""
        while self._ended:
            self._ask(self._sequence.finished, self._ended.popleft())

    def _flush(self) -> None:
        super()._flush()
        self._end_finished()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Keep the message for *delay*, then send it back: later ones must not come before it."""
        wait = self._messages_to.requeue_delay(message, delay)
        with self.loop.guard:
            self._ask_soon(self._sequence.failed, message, wait)

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Queue the answer; the partition goes on."""
        super().answer_late(message, finished=finished)
        self._ask_soon(partial(self._sequence.answered_late, finished=finished), message)

    def slow_down(self, command: bytes = b"") -> None:
        """Its delay is the pause of its partition."""

    def left_open(self, message: Message) -> None:
        """Its handler returned without an answer."""
        self._ask_soon(self._sequence.handler_returned, message)

    def skipped(self, message: Message) -> None:
        """Its time had passed before a handler began."""
        self._ask_soon(self._sequence.expired, message)

    def send_close(self, on_answered: Callable[[], None]) -> None:
        """Send CLS, and send back the messages that are held."""
        super().send_close(on_answered)
        self._end_finished()
        self._ask(self._sequence.close)

    def _ask_soon(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        self.loop.call_soon(partial(self._ask, decide, *about))

    def _ask(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        if self.is_open():  # else its messages are nsqd's again
            for decision in decide(*about):
                self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        """A message to be held waits for its time, one for a handler goes to the pool."""
        if isinstance(decision, Handle):
            if self._reads_in_hub or current_greenlet() is not self.loop.hub:
                self._messages_to.handle([decision.message])
            else:
                self.loop.spawn("inline handler", self._messages_to.handle, [decision.message])
        elif isinstance(decision, Hold):
            self._hold(decision.message, decision.seconds)
        elif isinstance(decision, SendBack):
            if claim(decision.message):
                super().requeue(decision.message, 0.0, False)
            else:
                super().answer_late(decision.message, finished=False)
        elif claim(decision.message):
            self.in_flight.answered(1)
            self._tell_flow(1)

    def _hold(self, message: Message, seconds: float) -> None:
        self._flow.rest(self, True)

        def release() -> None:
            timer.close()
            self._ask(self._sequence.release, message)
            if self.is_open():
                self._flow.rest(self, False)

        timer = self.loop.timer(seconds, release)
