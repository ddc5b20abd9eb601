"""How a supervisor and its processes talk: a process's number, its readiness, its wish to be replaced, pauses.

They write small files beside the socket of the process's status pages.  Neither waits for the other, and a report
outlives the process that wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

#: The environment variable with a process's slot; its command line is the supervisor's.
VARIABLE = "GNSQ_LITE_SUPERVISED"

#: The file that exists while the supervisor has its processes paused.
_PAUSED = "paused"


class Report(Enum):
    """What a process may report."""

    #: Seconds it may take to drain.
    LIMIT = "limit"
    #: How many of its handlers can receive messages, of how many.
    READY = "ready"
    #: A source has changed.
    CHANGED = "changed"
    #: Why it should be replaced.
    WORN = "worn"
    #: Its page of shared memory (:class:`gnsq_lite.supervise.shared_memory.Pulse`).
    PULSE = "pulse"


@dataclass(frozen=True)
class Slot:
    """A process's slot under its supervisor."""

    supervisor: int
    number: int
    #: Path of the Unix socket on which the process serves its status pages.
    socket: str

    def text(self) -> str:
        """Return the value of :data:`VARIABLE`."""
        return f"{self.supervisor}:{self.number}:{self.socket}"

    def report(self, report: Report, text: str) -> None:
        """Report to the supervisor, if it still runs.  Raises OSError: the disk is full, for one."""
        path = _file(self.socket, report)
        with suppress(FileNotFoundError):  # its folder went with it
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.new", path)

    def is_paused(self) -> bool:
        """Whether the supervisor has paused its processes."""
        return os.path.exists(os.path.join(os.path.dirname(self.socket), _PAUSED))

    def is_orphaned(self, parent: Callable[[], int] = os.getppid) -> bool:
        """Whether the supervisor is gone: nobody would ever end this process."""
        return parent() != self.supervisor


def read_report(socket: str, report: Report) -> str | None:
    """Return the report of the process with that *socket*, or None."""
    try:
        with open(_file(socket, report), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def reported_limit(socket: str) -> float | None:
    """Return the reported drain limit of the process with that *socket*, seconds, or None."""
    return _number(read_report(socket, Report.LIMIT))


def reported_ready(socket: str) -> tuple[int, int]:
    """Return how many handlers of that process are ready, of how many; (0, 0) before it has reported."""
    some, _, all_of_them = (read_report(socket, Report.READY) or "").partition("/")
    return int(_number(some) or 0), int(_number(all_of_them) or 0)


def set_paused(folder: str, paused: bool) -> None:
    """Pause or resume all processes whose sockets are in *folder*, those started later included.  Raises OSError."""
    path = os.path.join(folder, _PAUSED)
    if paused:
        open(path, "wb").close()
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_reports(socket: str, *reports: Report) -> None:
    """Remove the reports of the process with that *socket*."""
    for report in reports:
        with suppress(FileNotFoundError):
            os.unlink(_file(socket, report))


def _file(socket: str, report: Report) -> str:
    return f"{socket}.{report.value}"


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def take_slot(environ: MutableMapping[str, str] = os.environ) -> Slot | None:
    """Return this process's slot, or None where no supervisor started it.

    The variable is removed, so that processes started from here have no slot.  Raises SystemExit in a process that a
    supervisor started and that is not its child any more: the supervisor has ended, and this process must not become
    another one.
    """
    text = environ.pop(VARIABLE, "")
    supervisor, _, rest = text.partition(":")
    number, _, socket = rest.partition(":")
    if not text:
        return None
    if not (supervisor.isdigit() and number.isdigit() and socket) or int(supervisor) != os.getppid():
        raise SystemExit(f"gnsq-lite: {VARIABLE}={text} names a supervisor that is not the parent of this process")
    return Slot(int(supervisor), int(number), socket)
