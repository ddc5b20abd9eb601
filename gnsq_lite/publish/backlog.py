"""How much may be unanswered of what nobody waits for."""

from __future__ import annotations

from gnsq_lite.errors import BacklogFull
from gnsq_lite.net.nested import holding, holds, is_nested
from gnsq_lite.net.os_threads import native_ident, native_lock
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.publication import Publication


class Backlog:
    """Bytes of publishes without an outcome that nobody waits for, at most *most* (``max_pending``)."""

    def __init__(self, most: int, taken: Taken) -> None:
        self._most, self._taken = most, taken
        self._lock = native_lock()
        self._reserved = self._released = 0
        #: Of calls that came in the middle of :meth:`reserve`, and are not in the sum yet.
        self._nested: list[int] = []

    @property
    def size(self) -> int:
        """Bytes without an outcome."""
        return self._reserved + sum(self._nested) - self._released - self._taken.bytes

    @holds
    def reserve(self, publication: Publication, size: int) -> None:
        """Count a publish; from any thread.  Raises BacklogFull."""
        if holding and is_nested():
            self._check(size)
            self._nested.append(size)
        else:
            me = native_ident()
            try:
                holding.add(me)
                self._reserve(size)
            finally:
                holding.discard(me)
        publication.cost = size

    def _reserve(self, size: int) -> None:
        with self._lock:
            self._check(size)
            self._reserved += size
            while self._nested:
                self._reserved += self._nested.pop()

    def _check(self, size: int) -> None:
        if self.size + size > self._most:
            raise BacklogFull(f"{self._most} bytes are unanswered already (max_pending); nothing was sent")

    def release(self, size: int) -> None:
        """Take off *size* bytes that have their outcome, in the loop; those that a read of OKs took are off already."""
        self._released += size
