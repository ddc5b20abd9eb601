"""Elects one process of a supervisor.  The elected process holds the lock on a file in the supervisor's folder."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import Any


class Election:
    """Election among the processes of one supervisor.  The kernel releases the lock when the elected process ends.

    The file records the due time of each task's last run, so that the next elected process does not repeat that run.

    Args:
        path: Path of the file, or None without a supervisor.  A process without a supervisor is always elected.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._file: int | None = None
        self._runs: dict[str, float] = {}
        os.register_at_fork(after_in_child=self.resign)  # otherwise a handler's forked child would keep the lock

    def is_elected(self) -> bool:
        """Take the lock if it is free.  Return whether this process holds the lock."""
        if self._path is None or self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # the supervisor has ended and removed its folder
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def last_runs(self) -> dict[str, float]:
        """Return the due time of each task's last run.  Ignore invalid JSON, which a killed process may have left."""
        if self._file is None:
            return self._runs
        found: Any = {}
        with suppress(ValueError):
            found = json.loads(os.pread(self._file, 1 << 20, 0))
        return found if isinstance(found, dict) else {}

    def record(self, name: str, when: float) -> None:
        """Record that the task *name* ran for the due time *when*.  Pad with spaces to overwrite a longer text."""
        if self._path is None:
            self._runs[name] = when
        elif self._file is not None:
            text = json.dumps({**self.last_runs(), name: when}).encode()
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, text.ljust(size), 0)

    def resign(self) -> None:
        """Release the lock by closing the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
