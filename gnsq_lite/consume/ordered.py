"""A connection whose messages are handled strictly in order (YZ-6).

A failure pauses its partition and no other, as long as the failed message waits for its delay; that message, sent
again, is the probe.  So the Reader's backoff has no part in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from greenlet import getcurrent

from gnsq_lite.consume.sends_directly import SendsDirectly
from gnsq_lite.message import Message, claim
from gnsq_lite.net.lost import interrupted
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.policy.sequence import Decision, Handle, Hold, SendBack, Sequence
from gnsq_lite.wire import commands


class OrderedConnection(SendsDirectly):
    """Asks the dialect's sequence what to do with each message and each answer; carries its decisions out."""

    def __init__(self, sequence: Sequence, *connection: Any, reads_in_hub: bool = False) -> None:
        super().__init__(*connection, reads_in_hub=reads_in_hub)
        self.fins = None  # each FIN moves the sequence on
        self._sequence = sequence
        #: Those whose FIN is queued and of which the sequence does not know yet.
        self._ended: deque[Message] = deque()
        #: A message that no handler had at the last look, though it is to be at one.
        self._abandoned: Message | None = None

    def _take_messages(self, data: bytes) -> bool:
        """In the hub: as ever, but at the cost of what one message needs that comes when no other is in flight."""
        if self.in_flight.count or self._flow.watches or not self._share:
            return super()._take_messages(data)
        self.read_at = now = self.clock.now()
        messages = self._decoder.feed_messages(data)
        if not messages:
            return False
        if len(messages) > 1 or not self._sequence.begins(messages[0]):
            self._on_messages(messages)
        else:
            self.in_flight.add_first(messages, now)
            self._messages_to.handle(messages)
        return True

    def _on_messages(self, messages: list[Message]) -> None:
        self._count_in(messages)
        if len(messages) == 1 and self._sequence.begins(messages[0]):  # as nearly always
            self._messages_to.handle(messages)
            return
        for message in messages:
            self._ask(self._sequence.arrived, message)

    def finish(self, message: Message) -> None:
        """Send FIN, or queue it where that is for the loop's thread to do; the next message may be handled."""
        stream: Any = self._stream
        is_lost = stream is None or stream.closed is not None
        if is_lost or self._due or self._on_answered is not None or self.loop.ident != native_ident():
            self._finish_soon(message)
            return
        # The server sends nothing before it has this one: a turn later it would not be a write less.
        try:
            self.finished += 1
            in_flight = self.in_flight
            in_flight.count -= 1
            if stream.unsent or self._write is None:
                self._emit(commands.finish(message.id))
            else:
                self._send_here(commands.finish(message.id))
            if self._flow.watches or in_flight.count >= self._share:
                self._tell_flow(1, success=True)
            if self._limit.rests:
                self._limit.look()
            if not self._sequence.ends(message):
                self._ask(self._sequence.finished, message)
        except BaseException:  # the sequence may not know what the server was sent
            self.close(interrupted(self.address))
            raise

    handled = finish

    def _finish_soon(self, message: Message) -> None:
        self._ended.append(message)  # first: the FIN calls for a flush
        super().finish(message)

    def _flush(self) -> None:
        super()._flush()
        while self._ended:
            self._ask(self._sequence.finished, self._ended.popleft())

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Keep the message for *delay*, then send it back: later ones must not come before it."""
        wait = self._messages_to.requeue_delay(message, delay)
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

    def give_back(self) -> None:
        """The Reader closes: what is held goes back now."""
        self._ask(self._sequence.close)

    def cut(self) -> list[Message]:
        """The connection is gone: nothing more of it is handed out; return what waited in here."""
        return list(self._sequence.cut())

    def _ask_soon(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        self.loop.call_soon(partial(self._ask, decide, *about))

    def _ask(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        try:
            for decision in decide(*about):
                self._carry_out(decision)
        except BaseException:  # what was decided is not done, and is decided only once
            self.close(interrupted(self.address))
            raise

    def _carry_out(self, decision: Decision) -> None:
        """A message to be held waits for its time, one for a handler goes to the pool."""
        if isinstance(decision, Handle):
            if self._reads_in_hub or getcurrent() is not self.loop.hub:
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
            self.in_flight.count -= 1
            self._tell_flow(0, 1)

    def look_for_abandoned(self, is_attended: Callable[[Message], bool]) -> None:
        """Close where no handler has had the message at two looks: its answer was interrupted, and none follows."""
        message = self._sequence.at_handler
        if message is None or is_attended(message):
            self._abandoned = None
        elif self._abandoned is message:
            self.close(interrupted(self.address))
        else:
            self._abandoned = message

    def _hold(self, message: Message, seconds: float) -> None:
        timer = self.loop.hub.loop.timer(max(0.0, seconds))
        self._flow.rest(self.endpoint, True)

        def release() -> None:
            try:
                timer.close()
                self._ask(self._sequence.release, message)
                if self.is_open():
                    self._flow.rest(self.endpoint, False)
            except BaseException:  # it would be held for ever
                self.close(interrupted(self.address))
                raise

        timer.start(release, update=True)
