"""The right to read a connection, which its loop may grant to threads for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import native_rlock


class ReadLease:
    """Decides whether the loop or a thread reads a connection, and handles what it reads.

    One thread at a time holds the lease, for a moment.  The loop does not wait for the thread: if :meth:`revoke`
    returns False, *on_returned* is called in the loop when the thread has released the lease.
    """

    def __init__(self, loop: Loop, on_returned: Callable[[], None]) -> None:
        self._loop, self._on_returned = loop, on_returned
        self._held: Any = native_rlock()
        #: Whether threads may acquire the lease.  The loop and the thread that holds the lease may clear it.
        self.is_granted = False

    def revoke(self) -> bool:
        """Let no thread acquire the lease, and return whether no thread holds it.  Call this in the loop's thread."""
        self.is_granted = False  # before the lock is tried: release() reads it after it has released the lock
        is_free: bool = self._held.acquire(False)
        if is_free:
            self._held.release()
        return is_free

    def wait(self) -> None:
        """Block until no thread holds the lease, but at most 1 s, because an exception may have ended the thread."""
        if self._held.acquire(True, 1.0):
            self._held.release()

    def acquire(self) -> bool:
        """Acquire the lease in a thread, or return False.  The thread must call :meth:`release` in any case."""
        if self.is_granted and self._held.acquire(False):
            return self.is_granted
        return False

    def release(self) -> None:
        """Release the lease if the calling thread holds it."""
        if self._held._is_owned():
            self._held.release()
            if not self.is_granted:
                self._loop.call_soon(self._on_returned)
