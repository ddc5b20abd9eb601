"""Memory that a supervisor shares with its processes: mapped files in its folder that outlive a killed process."""

from __future__ import annotations

import mmap
import os

#: Seconds between two ticks of a process's I/O loop.
TICK = 1.0
#: Seconds until a hang is checked again before the kill: the supervisor may have been suspended itself.
SECOND_LOOK = 3.0

#: Size of a :class:`Pulse`, and offset of its text, in bytes.
_PAGE, _TEXT = 256, 16


def _mapped(path: str, size: int) -> mmap.mmap:
    """Map *size* bytes of the file *path*, filling missing bytes with zeros.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < size:
            os.pwrite(file, bytes(size), 0)  # a full disk raises here; otherwise the first access would raise SIGBUS
        return mmap.mmap(file, size)
    finally:
        os.close(file)


#: Slots of :class:`Runs`; of two messages with the same slot, the later one replaces the earlier one.
_SLOTS = 65_536


class Runs:
    """Table that counts, for all processes, how often handlers began each message.

    A slot has 8 bytes: 56 bits of the message's number and a count.  A race of two processes can only lose a count.
    """

    def __init__(self, folder: str) -> None:
        """Map the table in the supervisor's *folder*.  Raises OSError."""
        self._slots = memoryview(_mapped(os.path.join(folder, "runs"), 8 + 8 * _SLOTS)).cast("Q")

    def count(self, number: int) -> int:
        """Return how often handlers began the message *number*, which is a random 64-bit number."""
        slot = self._slots[1 + (number >> 8) % _SLOTS]
        return slot & 0xFF if slot >> 8 == number >> 8 else 0

    def add(self, number: int, more: int) -> None:
        """Add *more* to the count of the message *number*; keep the count between 0 and 255."""
        count = max(0, min(0xFF, self.count(number) + more))
        self._slots[1 + (number >> 8) % _SLOTS] = (number & ~0xFF) | count

    @property
    def ended(self) -> int:
        """Number of processes that have ended; each may have held a message that no handler began."""
        return self._slots[0]

    def process_ended(self) -> None:
        """Count the end of a process.  Called by the supervisor."""
        self._slots[0] += 1


class Pulse:
    """Page that one process writes and its supervisor reads: ticks of the I/O loop, and the last message begun."""

    def __init__(self, socket: str) -> None:
        """Map the page of the process with that *socket*.  Raises OSError."""
        self._page = _mapped(f"{socket}.pulse", _PAGE)
        self._numbers = memoryview(self._page).cast("Q")
        self._ticks, self._since, self._suspected = 0, 0.0, 0.0

    def start(self, hang_timeout: float) -> None:
        """Set the seconds without a tick until the supervisor kills the process; 0: never.  Called by the process."""
        self._numbers[1] = int(hang_timeout * 1000)

    def tick(self) -> None:
        """Record that the I/O loop runs.  Called by the process."""
        self._numbers[0] += 1

    def begin(self, text: bytes) -> None:
        """Record the message that a handler begins.  Called by the process."""
        self._page[_TEXT:] = text[: _PAGE - _TEXT].ljust(_PAGE - _TEXT, b"\0")

    @property
    def begun(self) -> str:
        """The message that a handler began last; "" if there is none."""
        return self._page[_TEXT:].rstrip(b"\0").decode("ascii", "backslashreplace")

    def hangs_for(self, now: float) -> float:
        """Return the seconds for which the process has hung, or 0 if the supervisor must not kill it.

        Called by the supervisor.  A process without a first tick is still loading, and is never killed.
        """
        ticks, timeout = self._numbers[0], self._numbers[1] / 1000
        if ticks != self._ticks:
            self._ticks, self._since, self._suspected = ticks, now, 0.0
        if not ticks or not timeout or now - self._since < timeout:
            return 0.0
        self._suspected = self._suspected or now
        return now - self._since if now - self._suspected >= SECOND_LOOK else 0.0
