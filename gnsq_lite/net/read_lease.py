"""The right to read a connection, which its loop may grant to threads for a while."""

from __future__ import annotations

from collections.abc import Callable

from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import native_sleep

#: Maximum seconds of :meth:`ReadLease.wait`, and seconds between two of its checks.
_MOST, _POLL = 1.0, 0.001


class ReadLease:
    """Decides whether the loop or a thread reads a connection, and handles what it reads.

    One thread at a time holds the lease, for a moment.  The loop does not wait for the thread: if :meth:`revoke`
    returns False, *on_returned* is called in the loop when the thread has returned the lease.

    Another thread may raise an exception in the holder at the first instruction of any Python function.  Therefore the
    thread returns the lease in a ``finally`` with one call of C, ``holders.discard(holder)``, and then calls
    :meth:`report`.
    """

    def __init__(self, loop: Loop, on_returned: Callable[[], None]) -> None:
        self._loop, self._on_returned = loop, on_returned
        #: The holder of the lease, and those that try to acquire it: any objects.
        self.holders: set[object] = set()
        #: Whether threads may acquire the lease.  The loop and the thread that holds the lease may clear it.
        self.is_granted = False

    def revoke(self) -> bool:
        """Let no thread acquire the lease, and return whether no thread holds it.  Call this in the loop's thread."""
        self.is_granted = False  # before the read of holders: acquire() adds the holder and then reads is_granted
        return not self.holders

    def wait(self) -> None:
        """Block until no thread holds the lease, but at most 1 s, because the system may have stopped the thread."""
        for _ in range(int(_MOST / _POLL)):
            if not self.holders:
                return
            native_sleep(_POLL)

    def acquire(self, holder: object) -> bool:
        """Acquire the lease for *holder* in a thread, or return False.  The thread must return it in any case."""
        if not self.is_granted:
            return False
        self.holders.add(holder)
        return self.is_granted and len(self.holders) == 1

    def report(self) -> None:
        """Report to the loop that the thread has returned the lease, if the loop may wait for this.

        An exception may prevent the call, so the loop must also look once in a while.
        """
        if not self.is_granted:
            self._loop.call_soon(self._on_returned)
