"""A Writer's connection that only its loop uses; many publishes may be unanswered.

Most reads hold nothing but OKs.  Those are taken in the hub, without a switch to the greenlet that reads.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NotLeaderError, NotWritableError
from gnsq_lite.net.connection import MOST_UNSENT, Connection
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.target import Owner, Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.publish.answer_queue import AnswerQueue, Taken
from gnsq_lite.publish.publication import Publication

#: With so many publishes unanswered, that many bytes of answers are waited for at once: nsqd answers one by one, and
#: each answer has 10 bytes or more.  A poll and a read for each would cost as much as the publish.
MANY = 32
AT_ONCE = 160
#: Seconds without a read after which a connection is looked at before something is sent on it (PUB-3).
STALE = 0.001
#: nsqd carries out the publishes behind one that it refused so (YZ-8).
REROUTED = (NotLeaderError, NotWritableError)


class PublishOwner(Owner, Protocol):
    """Whose connection it is."""

    #: Whether it has left a publish unanswered, and its answers are the loop's; set and looked at under the lock.
    silent: bool
    #: Whether it is sent nothing, until it has taken what it was sent.
    full: bool
    #: What is to be sent to it as soon as it can be.
    waiting: deque[Publication]

    def on_room(self) -> None:
        """It is not full any more."""

    def on_disconnected(self, connection: Any) -> None:
        """It is gone; told again when its greenlet has noticed."""


class Pipelined(Connection):
    """*pending* are the publishes that were sent; *taken* counts those that nsqd took."""

    outlives = REROUTED

    def __init__(
        self,
        loop: Loop,
        target: Target,
        options: ConnectionOptions,
        owner: PublishOwner,
        clock: Clock,
        pending: AnswerQueue[Publication],
        taken: Taken,
    ) -> None:
        super().__init__(loop, target, options, owner, clock)
        self._destination, self._pending, self._taken = owner, pending, taken
        #: Whether a frame has come in part, or the bytes are no frames yet.
        self._partial = True
        #: Bytes that may be queued before somebody has to look how many nsqd has not taken.
        self._room = MOST_UNSENT

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        if self._stream is not None:
            self._stream.hears_out = True
            self._stream.on_drained = self._regain_room
            if self._codec is None:
                self._stream.offer(partial(self.loop.deliver, self._take_oks))
        super().run()

    def send_publish(self, publication: Publication) -> bool:
        """Send it; in the loop's thread.

        False, and nothing was sent, when the connection turns out to have ended, or when nsqd has not taken what it was
        sent before: what waits for that in the Writer is not sent after its deadline, and another nsqd may get it.
        """
        pending = self._pending
        command = publication.command()
        stream: Any = self._stream
        if self._room < 0 and not self._has_room():
            return False
        if stream.closed is not None or (
            not pending and self.clock.now() - self.read_at > STALE and stream.has_ended()
        ):
            # Its greenlet will find out in a moment; the message need not be lost with it.
            self._destination.on_disconnected(self)
            return False
        if publication.carrier is None:
            publication.sent = True
        elif not publication.mark_sent():
            return True
        pending.append(publication)
        if len(pending) > 1 or self._out:  # many that wait are joined, one is not
            if len(pending) == MANY:
                self.read_at_least(AT_ONCE)
            self._room -= len(command)
            self._out.append(command)  # what send() does, without the call
            if not self._due:
                self._due = True
                self.loop.soon(self._flush)
        elif self._codec is None:
            stream.write(command)
        else:
            self._emit(command)
        return True

    def _has_room(self) -> bool:
        """Look whether nsqd has taken most of what it was sent; it is full if not."""
        if not self._destination.full:
            self._room = MOST_UNSENT - self.unsent() - sum(map(len, self._out))
            self._destination.full = self._room < 0
        return not self._destination.full

    def _flush(self) -> None:
        super()._flush()
        if self._room < 0:
            self._regain_room()

    def _regain_room(self) -> None:
        """Have publishes sent again that found no room, before any that come later; in the hub."""
        if self._destination.full:
            self._destination.full = False
            self._destination.on_room()

    def _deliver(self, data: bytes) -> None:
        self._partial = True
        super()._deliver(data)
        self._partial = self._decoder.pending_bytes > 0

    def _take_oks(self, data: bytes) -> bool:
        """Settle what a read answers that is OKs; False: it is for the reader.  In the hub."""
        pending = self._pending
        before = len(pending)
        if self._partial or self._destination.silent or not pending.take_oks(data, self._taken):
            return False
        self.read_at = self.clock.now()
        if len(pending) < MANY <= before:
            self.read_at_least(1)
        return True
