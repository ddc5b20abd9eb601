"""Files that a supervisor and its processes exchange: slot number, readiness, requests to be replaced, pauses.

The small files are beside the socket of the process's status pages.  The supervisor and its processes never wait for
each other, and a report outlives the process that wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

#: Environment variable with a process's slot; the process has the same command line as the supervisor.
VARIABLE = "GNSQ_LITE_SUPERVISED"

#: File that exists while the supervisor's processes are paused.
_PAUSED = "paused"


class Report(Enum):
    """Kind of report that a process writes."""

    #: Seconds that the process may take to drain.
    LIMIT = "limit"
    #: "3/4": three of the process's four handlers can receive messages.
    READY = "ready"
    #: A source file has changed.
    CHANGED = "changed"
    #: Reason why the process should be replaced.
    WORN = "worn"
    #: The process's page of shared memory (:class:`gnsq_lite.supervise.shared_memory.Pulse`).
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
        """Write a report for the supervisor, if it still runs.  Raises OSError, for example if the disk is full."""
        path = _file(self.socket, report)
        with suppress(FileNotFoundError):  # the supervisor ended and removed the folder
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.new", path)

    def is_paused(self) -> bool:
        """Whether the supervisor has paused its processes."""
        return os.path.exists(os.path.join(os.path.dirname(self.socket), _PAUSED))

    def is_orphaned(self, parent: Callable[[], int] = os.getppid) -> bool:
        """Whether the supervisor has ended, so that no supervisor would ever stop this process."""
        return parent() != self.supervisor


def read_report(socket: str, report: Report) -> str | None:
    """Read a report of the process with that *socket*; return None if the process has not written it."""
    try:
        with open(_file(socket, report), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def reported_limit(socket: str) -> float | None:
    """Return the drain limit that the process with that *socket* reported, in seconds, or None."""
    return _number(read_report(socket, Report.LIMIT))


def reported_ready(socket: str) -> tuple[int, int]:
    """Return the numbers of ready handlers and of all handlers of that process; (0, 0) before its report."""
    some, _, all_of_them = (read_report(socket, Report.READY) or "").partition("/")
    return int(_number(some) or 0), int(_number(all_of_them) or 0)


def set_paused(folder: str, paused: bool) -> None:
    """Pause or resume all present and later processes with sockets in *folder*.  Raises OSError."""
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
    """Return this process's slot, or None if no supervisor started this process.

    Removes the variable, so that child processes of this process have no slot.  Raises SystemExit if the supervisor in
    the slot is not the parent of this process: this process would otherwise start as a supervisor itself.
    """
    text = environ.pop(VARIABLE, "")
    supervisor, _, rest = text.partition(":")
    number, _, socket = rest.partition(":")
    if not text:
        return None
    if not (supervisor.isdigit() and number.isdigit() and socket) or int(supervisor) != os.getppid():
        raise SystemExit(f"gnsq-lite: {VARIABLE}={text} names a supervisor that is not the parent of this process")
    return Slot(int(supervisor), int(number), socket)
