"""A Writer's connection that only its loop uses; many publishes may be unanswered.

Most reads hold nothing but OKs.  Those are taken in the hub, without a switch to the greenlet that reads.
"""

from __future__ import annotations

from typing import Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.errors import ConnectionLost
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.target import Owner, Target
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.publish.answer_queue import AnswerQueue, Taken
from gnsq_lite.publish.publication import Publication

#: With so many publishes unanswered, that many bytes of answers are waited for at once: nsqd answers one by one, and
#: each answer has 10 bytes or more.  A poll and a read for each would cost as much as the publish.
MANY = 32
AT_ONCE = 160


class PublishOwner(Owner, Protocol):
    """Whose connection it is."""

    #: Whether it has left a publish unanswered, and its answers are the loop's; set and looked at under the lock.
    silent: bool


class Pipelined(Connection):
    """*pending* are the publishes that were sent; *taken* counts those that nsqd took."""

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

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        if self._stream is not None and self._codec is None:
            self._stream.offer(self._take_oks)
        super().run()

    def send_at_once(self, data: bytes) -> None:
        """Send *data*, which nothing that follows in this turn is worth waiting for; in the loop's thread."""
        if self._out or self._codec is not None or self._stream is None:
            super().send_at_once(data)
        else:
            self._stream.write(data)

    def _deliver(self, data: bytes) -> None:
        self._partial = True
        super()._deliver(data)
        self._partial = self._decoder.pending_bytes > 0

    def _take_oks(self, data: bytes) -> bool:
        """Settle what a read answers that is OKs; False: it is for the reader.  In the hub."""
        pending = self._pending
        before = len(pending)
        try:
            if self._partial or self._destination.silent or not pending.take_oks(data, self._taken):
                return False
        except BaseException:  # interrupted: whose the next answer is, is not known
            self.close(ConnectionLost(self.address, "this thread was interrupted in the middle of an answer"))
            raise
        self.read_at = self.clock.now()
        if len(pending) < MANY <= before:
            self.read_at_least(1)
        return True
