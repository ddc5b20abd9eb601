"""Memory that a supervisor shares with its processes: mapped files in its folder, which outlive a killed process."""

from __future__ import annotations

import mmap
import os

#: Seconds between two ticks of a process's I/O loop.
TICK = 1.0
#: Seconds after which a process that seems to hang is looked at again: its supervisor may have been stopped, too.
SECOND_LOOK = 3.0

#: Bytes of a :class:`Pulse`, and where its text begins.
_PAGE, _TEXT = 256, 16


def _mapped(path: str, size: int) -> mmap.mmap:
    """Map *size* bytes of the file *path*, made of zeros where it is missing.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < size:
            os.pwrite(file, bytes(size), 0)  # a full disk fails here, and not at the first access, with SIGBUS
        return mmap.mmap(file, size)
    finally:
        os.close(file)


#: Messages that :class:`Runs` remembers, at most; two that fall on one slot replace each other.
_SLOTS = 65_536


class Runs:
    """How often handlers of all processes began a message, by its number; 8 bytes each: 56 of that number, and a count.

    A race between two processes loses a count, and nothing else.
    """

    def __init__(self, folder: str) -> None:
        """Map the table in the supervisor's *folder*.  Raises OSError."""
        self._slots = memoryview(_mapped(os.path.join(folder, "runs"), 8 + 8 * _SLOTS)).cast("Q")

    def count(self, number: int) -> int:
        """Return how often handlers began the message *number*, a random one of 64 bits."""
        slot = self._slots[1 + (number >> 8) % _SLOTS]
        return slot & 0xFF if slot >> 8 == number >> 8 else 0

    def add(self, number: int, more: int) -> None:
        """Add *more* to the count of the message *number*; it stays between 0 and 255."""
        count = max(0, min(0xFF, self.count(number) + more))
        self._slots[1 + (number >> 8) % _SLOTS] = (number & ~0xFF) | count

    @property
    def ended(self) -> int:
        """How many processes have ended: each may have had a message that none of its handlers began."""
        return self._slots[0]

    def process_ended(self) -> None:
        """Count the end of a process; in the supervisor."""
        self._slots[0] += 1


class Pulse:
    """What one process writes, and its supervisor reads: ticks of the I/O loop, and the message begun last."""

    def __init__(self, socket: str) -> None:
        """Map the page of the process with that *socket*.  Raises OSError."""
        self._page = _mapped(f"{socket}.pulse", _PAGE)
        self._numbers = memoryview(self._page).cast("Q")
        self._ticks, self._since, self._suspected = 0, 0.0, 0.0

    def start(self, hang_timeout: float) -> None:
        """In the process: have the supervisor kill it after *hang_timeout* seconds without a tick; 0: never."""
        self._numbers[1] = int(hang_timeout * 1000)

    def tick(self) -> None:
        """In the process: note that the I/O loop runs."""
        self._numbers[0] += 1

    def begin(self, text: bytes) -> None:
        """In the process: note the message that a handler begins."""
        self._page[_TEXT:] = text[: _PAGE - _TEXT].ljust(_PAGE - _TEXT, b"\0")

    @property
    def begun(self) -> str:
        """The message that a handler began last; "" for none."""
        return self._page[_TEXT:].rstrip(b"\0").decode("ascii", "backslashreplace")

    def hangs_for(self, now: float) -> float:
        """In the supervisor: return the seconds for which the process has hung if it is to be killed, else 0.

        A process that has not ticked yet is loading, and is never killed.
        """
        ticks, timeout = self._numbers[0], self._numbers[1] / 1000
        if ticks != self._ticks:
            self._ticks, self._since, self._suspected = ticks, now, 0.0
        if not ticks or not timeout or now - self._since < timeout:
            return 0.0
        self._suspected = self._suspected or now
        return now - self._since if now - self._suspected >= SECOND_LOOK else 0.0
