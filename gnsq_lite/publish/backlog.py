"""How much may be unanswered of what nobody waits for."""

from __future__ import annotations

from gnsq_lite.errors import BacklogFull
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.publication import Publication


class Backlog:
    """Bytes of publishes without an outcome that nobody waits for, at most *most* (``max_pending``)."""

    def __init__(self, most: int, taken: Taken) -> None:
        self._most, self._taken = most, taken
        self._lock = native_lock()
        self._reserved = self._released = 0
        #: Of calls that found the lock taken, and are not in the sum yet.
        self._aside: list[int] = []

    @property
    def size(self) -> int:
        """Bytes without an outcome."""
        return self._reserved + sum(self._aside) - self._released - self._taken.bytes

    def reserve(self, publication: Publication, size: int) -> None:
        """Count a publish; from any thread, without waiting.  Raises BacklogFull."""
        if not self._lock.locked():
            with self._lock:
                while self._aside:
                    self._reserved += self._aside.pop()
                self._check(self._reserved - self._released - self._taken.bytes + size)
                self._reserved += size
                publication.cost = size
        else:  # another thread's
            self._check(self.size + size)
            self._aside.append(size)
            publication.cost = size

    def _check(self, size: int) -> None:
        if size > self._most:
            raise BacklogFull(f"{self._most} bytes are unanswered already (max_pending); nothing was sent")

    def release(self, publication: Publication) -> None:
        """Take off, once, what has its outcome, in the loop; what a read of OKs took is off already."""
        size, publication.cost = publication.cost, 0
        self._released += size
