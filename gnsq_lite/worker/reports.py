"""What a Worker's process reports to its supervisor: that it is ready, and that it should be replaced."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.report_files import Report, Slot
from gnsq_lite.worker.app import Worker

#: Seconds the I/O loop has to answer.
_TIMEOUT = 2.0
_MIB = 1024 * 1024


def resident() -> float:
    """Return the resident memory of this process in MiB; without /proc, its peak."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / _MIB if sys.platform == "darwin" else most / 1024


@dataclass(frozen=True)
class Wear:
    """The limits after which a process is replaced by a new one."""

    #: Messages finished or requeued.
    max_messages: int | None = None
    #: MiB of resident memory.
    max_memory: int | None = None

    def why(self, stats: Sequence[ReaderStats], memory: Callable[[], float] = resident) -> str | None:
        """Return why the process should be replaced, or None."""
        overdue = sum(each.handlers_overdue for each in stats)
        if overdue:  # a thread ends with its process, and no sooner
            return f"{overdue} of its handlers do not end at their time limit"
        messages = sum(each.finished + each.requeued for each in stats)
        if self.max_messages is not None and messages >= self.max_messages:
            return f"it has handled {messages} messages"
        if self.max_memory is not None and (used := memory()) >= self.max_memory:
            return f"it uses {used:.0f} MiB"
        return None


class Reports:
    """Reports changes to the supervisor."""

    def __init__(self, worker: Worker, slot: Slot, wear: Wear) -> None:
        self._worker, self._slot, self._wear = worker, slot, wear
        self._ready, self._is_worn = "", False

    def look(self) -> None:
        """Report what has changed; the supervisor decides when to drain."""
        try:
            stats = [reader.stats(_TIMEOUT) for reader in self._worker.readers]
        except TimeoutError:  # a handler blocks the I/O loop
            stats = []
        ready = f"{sum(each.is_ready for each in stats)}/{len(self._worker.handlers)}"
        if ready != self._ready:
            self._slot.report(Report.READY, ready)
            self._ready = ready
        why = None if self._is_worn else self._wear.why(stats)
        if why is not None:
            self._slot.report(Report.WORN, why)
            self._is_worn = True
