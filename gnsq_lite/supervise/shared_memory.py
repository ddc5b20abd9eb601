"""Memory that a supervisor shares with its processes.  It consists of mapped files, which outlive a killed process."""

from __future__ import annotations

import mmap
import os

#: Seconds between two ticks of a process's I/O loop.
TICK = 1.0
#: Seconds from the detection of a hang to the kill.  A second check is needed, because the supervisor may have slept.
SECOND_LOOK = 3.0

#: Size of a :class:`ProcessMemory` in bytes, and byte offsets of the texts "begun" and "reason".
_SIZE, _BEGUN, _REASON = 512, 64, 288


def _mapped(path: str, size: int) -> mmap.mmap:
    """Map *size* bytes of the file *path*.  Fill a new file with zeros.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < size:
            os.pwrite(file, bytes(size), 0)  # a full disk raises here; otherwise the first access would raise SIGBUS
        return mmap.mmap(file, size)
    finally:
        os.close(file)


#: Number of slots of :class:`GroupMemory`.  If two messages have the same slot, the later message replaces the earlier.
_SLOTS = 65_536


class GroupMemory:
    """Memory that a supervisor and all its processes share: the pause, and counts of unfinished handler calls.

    A slot has 8 bytes: 56 bits of the message's number, and 8 bits for the count.  A race can only lose a count.
    """

    def __init__(self, folder: str) -> None:
        """Map the memory in the supervisor's *folder*.  Raises OSError."""
        self._slots = memoryview(_mapped(os.path.join(folder, "group"), 16 + 8 * _SLOTS)).cast("Q")

    def count(self, number: int) -> int:
        """Return how often handlers began and did not finish the message with the 64-bit hash *number*."""
        slot = self._slots[2 + (number >> 8) % _SLOTS]
        return slot & 0xFF if slot >> 8 == number >> 8 else 0

    def add(self, number: int, more: int) -> None:
        """Add *more* to the count of the message *number*.  Keep the count between 0 and 255."""
        count = max(0, min(0xFF, self.count(number) + more))
        self._slots[2 + (number >> 8) % _SLOTS] = (number & ~0xFF) | count

    @property
    def ended(self) -> int:
        """Number of ended processes.  An ended process may have held messages that no handler began."""
        return self._slots[0]

    def process_ended(self) -> None:
        """Count the end of a process.  The supervisor calls this."""
        self._slots[0] += 1

    @property
    def is_paused(self) -> bool:
        """Whether the supervisor has paused all handlers."""
        return bool(self._slots[1])

    def pause(self, paused: bool) -> None:
        """Pause or resume all handlers, including handlers of later processes.  The supervisor calls this."""
        self._slots[1] = paused


class _Number:
    """Attribute for a number in the memory of a :class:`ProcessMemory`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, memory: ProcessMemory, kind: type[ProcessMemory]) -> float:
        return memory._numbers[self._index]

    def __set__(self, memory: ProcessMemory, value: float) -> None:
        memory._numbers[self._index] = value


class ProcessMemory:
    """Memory in which one process reports to its supervisor."""

    #: Number of ticks of the I/O loop.  It is 0 while the process loads the Worker.
    ticks = _Number(0)
    #: Seconds without a tick after which the supervisor kills the process, or 0 for never.
    hang_timeout = _Number(1)
    #: Seconds that running handlers have to finish when the process stops.
    drain_timeout = _Number(2)
    #: Number of handlers ready to receive messages, and number of all handlers.  Both are 0 while the Worker loads.
    ready = _Number(3)
    handlers = _Number(4)
    #: 1 if the process asks to be replaced at once: a source file changed, or it uses too much memory.  If that fails,
    #: the supervisor sets 0.
    has_changed = _Number(5)

    def __init__(self, socket: str) -> None:
        """Map the memory of the process whose status pages are at *socket*.  Raises OSError."""
        self._bytes = _mapped(f"{socket}.memory", _SIZE)
        self._numbers = memoryview(self._bytes)[:_BEGUN].cast("d")
        self._seen_ticks, self._since, self._suspected = 0.0, 0.0, 0.0

    def begin(self, text: bytes) -> None:
        """Record the message that a handler begins.  The process calls this."""
        self._bytes[_BEGUN:_REASON] = text[: _REASON - _BEGUN].ljust(_REASON - _BEGUN, b"\0")

    @property
    def begun(self) -> str:
        """``TOPIC/CHANNEL ID`` of the message whose handler began last, or "" if no handler was called."""
        return self._bytes[_BEGUN:_REASON].rstrip(b"\0").decode("ascii", "backslashreplace")

    def ask_to_be_replaced(self, reason: str) -> None:
        """Ask the supervisor to replace the process.  The process calls this."""
        self._bytes[_REASON:] = reason.encode().ljust(_SIZE - _REASON, b"\0")

    @property
    def reason(self) -> str:
        """Reason for which the supervisor should replace the process, or ""."""
        return self._bytes[_REASON:].rstrip(b"\0").decode()

    def hangs_for(self, now: float) -> float:
        """Return the seconds without a tick, or 0 if the supervisor must not kill the process.

        The supervisor calls this.  A process without a tick is still loading the Worker, and must not be killed.
        """
        ticks, timeout = self.ticks, self.hang_timeout
        if ticks != self._seen_ticks:
            self._seen_ticks, self._since, self._suspected = ticks, now, 0.0
        if not ticks or not timeout or now - self._since < timeout:
            return 0.0
        self._suspected = self._suspected or now
        return now - self._since if now - self._suspected >= SECOND_LOOK else 0.0
