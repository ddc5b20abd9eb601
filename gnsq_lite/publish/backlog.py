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

    @property
    def size(self) -> int:
        """Bytes without an outcome."""
        return self._reserved - self._released - self._taken.bytes

    def reserve(self, publication: Publication, size: int) -> None:
        """Count a publish; from any thread.  Raises BacklogFull."""
        with self._lock:
            if self.size + size > self._most:
                raise BacklogFull(f"{self._most} bytes are unanswered already (max_pending); nothing was sent")
            self._reserved += size
        publication.cost = size

    def release(self, size: int) -> None:
        """Take off *size* bytes that have their outcome, in the loop; those that a read of OKs took are off already."""
        self._released += size
