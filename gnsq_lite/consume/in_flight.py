"""The messages that a connection has brought and that are not answered yet (MSG-5).

They are kept a read at a time, so that a message costs nothing here: counted when its read comes and when its answer
goes, looked at one by one only when a read is done with, or its time is over.
"""

from __future__ import annotations

from collections import deque

from gnsq_lite._core import skip_answered
from gnsq_lite.message import Message, is_open

#: So many answered messages may be kept because an older one is not answered.
_KEPT = 1000


class InFlight:
    """Counts, and remembers what is unanswered.  In the loop's thread, but for :attr:`finished_by_handlers`."""

    __slots__ = ("_count", "_kept", "_reads", "finished_by_handlers", "received", "received_at")

    def __init__(self) -> None:
        self._reads: deque[list[Message]] = deque()
        #: Messages in the reads.
        self._kept = 0
        self.received = 0
        #: Messages that came, without those that the loop has answered or counted out.
        self._count = 0
        #: FINs that handlers wrote themselves; changed only under the connection's write lock.
        self.finished_by_handlers = 0
        #: The clock's time of the last read; none yet.
        self.received_at = float("-inf")

    @property
    def count(self) -> int:
        """How many messages are neither answered nor counted out."""
        return self._count - self.finished_by_handlers

    def answered(self, count: int) -> None:
        """Count out *count* messages whose answers the loop sends."""
        self._count -= count

    def add(self, messages: list[Message], now: float) -> int:
        """A read at *now* brought these; return how many are in flight now."""
        self.received_at = now
        self.received += len(messages)
        self._count += len(messages)
        self._kept += len(messages)
        reads = self._reads
        if reads and self.count == len(messages):  # nothing else is in flight
            reads.clear()
            self._kept = len(messages)
        reads.append(messages)
        if len(reads) > 1:
            self._forget_answered()
            if self._kept > _KEPT and self._kept > 2 * self.count + _KEPT:
                self._keep_open()
        return self.count

    def _forget_answered(self) -> None:
        """Let go of old reads whose messages are all answered.

        An expired message keeps its token, so its read stays until :meth:`expire` lets it go.
        """
        reads = self._reads
        while len(reads) > 1 and skip_answered(reads[0], 0) == len(reads[0]):
            self._kept -= len(reads.popleft())

    def _keep_open(self) -> None:
        """Let go of what was answered behind a message that is not: one slow handler must not keep all that follow."""
        opened = ([m for m in read if is_open(m)] for read in self._reads)
        self._reads = deque(read for read in opened if read)
        self._kept = sum(map(len, self._reads))

    def unanswered(self) -> list[Message]:
        """Return the messages that are neither answered nor counted out."""
        return [message for read in self._reads for message in read if is_open(message)]

    def newest(self) -> Message | None:
        """Return the last message of the last read; None where nothing is kept of it."""
        return self._reads[-1][-1] if self._reads else None

    def is_here_twice(self, message: Message) -> bool:
        """Whether an earlier delivery of *message* is unanswered.  In any thread; looks at all that is in flight."""
        reads = list(self._reads)  # at once, as far as other threads go
        return any(m.id == message.id and m is not message and is_open(m) for read in reads for m in read)

    def expire(self, now: float, oldest_allowed: float) -> list[Message]:
        """Count out, and return, what nsqd has taken back by *now*.

        *oldest_allowed*: nothing that was received after it can be late.
        """
        if not self._reads or self._reads[0][0].received_at > oldest_allowed:
            return []
        late = [m for m in self.unanswered() if m.deadline <= now and m._expire()]
        self.answered(len(late))
        self._keep_open()
        return late

    def drop(self) -> bool:
        """Count out all messages: the connection is closed.  Return whether any was unanswered."""
        count = sum(message._expire() for message in self.unanswered())
        self._reads.clear()
        self._kept = 0
        self._count = self.finished_by_handlers
        return count > 0
