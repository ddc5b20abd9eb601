"""Received messages of a connection that are not answered yet (MSG-5).

Each read has a list of its messages.  The cost per message is low, because reads and answers only change counts.
InFlight checks single messages only when it may drop a list, and when messages may have timed out.
"""

from __future__ import annotations

from collections import deque

from gnsq_lite._core import skip_answered
from gnsq_lite.message import Message, is_open

#: If more answered messages than this, plus the unanswered ones, are kept, InFlight drops the answered messages.
_KEPT = 1000


class InFlight:
    """Keeps and counts the unanswered messages.  Call it in the loop's thread, unless noted otherwise."""

    __slots__ = ("_count", "_kept", "_reads", "finished_by_handlers", "received", "received_at")

    def __init__(self) -> None:
        self._reads: deque[list[Message]] = deque()
        #: Number of messages in the kept reads.
        self._kept = 0
        self.received = 0
        #: Number of received messages, minus the messages that the loop answered or removed.
        self._count = 0
        #: Number of FINs that handlers' threads wrote.  Change it only under the connection's write lock.
        self.finished_by_handlers = 0
        #: Monotonic time of the last read.
        self.received_at = float("-inf")

    @property
    def count(self) -> int:
        """Number of messages that are neither answered nor removed."""
        return self._count - self.finished_by_handlers

    def answered(self, count: int) -> None:
        """Subtract *count* messages that the loop answers."""
        self._count -= count

    def add(self, messages: list[Message], now: float) -> int:
        """Add the messages of a read at time *now*; return the number of messages in flight."""
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
        """Drop old reads whose messages are all answered.

        An expired message does not count as answered, so its read stays until :meth:`expire` drops it.
        """
        reads = self._reads
        while len(reads) > 1 and skip_answered(reads[0], 0) == len(reads[0]):
            self._kept -= len(reads.popleft())

    def _keep_open(self) -> None:
        """Drop all answered messages, so that one slow handler does not keep the later messages in memory."""
        opened = ([m for m in read if is_open(m)] for read in self._reads)
        self._reads = deque(read for read in opened if read)
        self._kept = sum(map(len, self._reads))

    def unanswered(self) -> list[Message]:
        """Return the messages that are neither answered nor removed."""
        return [message for read in self._reads for message in read if is_open(message)]

    def newest(self) -> Message | None:
        """Return the last message of the last kept read, or None."""
        return self._reads[-1][-1] if self._reads else None

    def is_here_twice(self, message: Message) -> bool:
        """Return whether another delivery of *message* is unanswered.  Thread-safe; checks all kept messages."""
        reads = list(self._reads)  # an atomic copy
        return any(m.id == message.id and m is not message and is_open(m) for read in reads for m in read)

    def expire(self, now: float, oldest_allowed: float) -> list[Message]:
        """Remove and return the messages whose deadline is at or before *now*.

        If the oldest message was received after *oldest_allowed*, no message can be late, and none is checked.
        """
        if not self._reads or self._reads[0][0].received_at > oldest_allowed:
            return []
        late = [m for m in self.unanswered() if m.deadline <= now and m._expire()]
        self.answered(len(late))
        self._keep_open()
        return late

    def drop(self) -> bool:
        """Remove all messages of the closed connection; return whether any was unanswered."""
        count = sum(message._expire() for message in self.unanswered())
        self._reads.clear()
        self._kept = 0
        self._count = self.finished_by_handlers
        return count > 0
