"""Elects one process of many: the one that holds the lock on a file in the supervisor's folder."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import Any


class Alone:
    """Elects this process, which has no supervisor."""

    def __init__(self) -> None:
        self._done: dict[str, float] = {}

    def wins(self) -> bool:
        """Return True."""
        return True

    def done(self) -> dict[str, float]:
        """Return when this process did each thing last, by name."""
        return self._done

    def note(self, name: str, when: float) -> None:
        """Remember when *name* was done last."""
        self._done[name] = when

    def leave(self) -> None:
        """Do nothing: there is no other process."""


class ByLock:
    """Elects among the processes of one supervisor; the kernel releases the lock however its holder ends.

    What was done is written to the file, so that the next process does not repeat it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        os.register_at_fork(after_in_child=self.leave)  # a child that a handler forked would keep the lock

    def wins(self) -> bool:
        """Take the lock if it is free."""
        if self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # the supervisor is gone, and its folder with it
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def done(self) -> dict[str, float]:
        """Read the file; ignore invalid JSON, which a killed writer may leave."""
        text = b"" if self._file is None else os.pread(self._file, 1 << 20, 0)
        found: Any = {}
        with suppress(ValueError):
            found = json.loads(text)
        return found if isinstance(found, dict) else {}

    def note(self, name: str, when: float) -> None:
        """Write the file in one call, padded to cover a longer text."""
        if self._file is not None:
            text = json.dumps({**self.done(), name: when}).encode()
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, text.ljust(size), 0)

    def leave(self) -> None:
        """Close the file, and with it the lock."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


Election = Alone | ByLock
