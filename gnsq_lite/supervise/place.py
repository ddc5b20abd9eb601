"""What a supervised process is told: who supervises it, its number, and where to say how it is."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

#: The environment variable that tells it; the command line is the supervisor's own.
VARIABLE = "GNSQ_LITE_SUPERVISED"


@dataclass(frozen=True)
class Place:
    """A process's place under its supervisor."""

    supervisor: int
    number: int
    #: Path of the Unix socket on which the process serves its status pages.
    socket: str

    def text(self) -> str:
        """Return the value of :data:`VARIABLE`."""
        return f"{self.supervisor}:{self.number}:{self.socket}"

    def tell_limit(self, seconds: float) -> None:
        """Tell the supervisor how long this process may take to drain.  Raises OSError."""
        with open(limit_file(self.socket), "w", encoding="ascii") as file:
            file.write(repr(float(seconds)))

    def is_orphaned(self, parent: Callable[[], int] = os.getppid) -> bool:
        """Whether the supervisor is gone, so that nobody would ever tell this process to end."""
        return parent() != self.supervisor


def limit_file(socket: str) -> str:
    """Return the path of the file in which a process says how long it may take to drain."""
    return f"{socket}.limit"


def told_limit(socket: str) -> float | None:
    """Return the seconds the process with that *socket* may take to drain; None: it has not said."""
    try:
        with open(limit_file(socket), encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return None


def take_place(environ: MutableMapping[str, str] = os.environ) -> Place | None:
    """Return this process's place, or None where it has no supervisor.

    The variable is removed: what this process starts has no place.  One that was meant for another process is ignored.
    """
    supervisor, _, rest = environ.pop(VARIABLE, "").partition(":")
    number, _, socket = rest.partition(":")
    if not (supervisor.isdigit() and number.isdigit() and socket) or int(supervisor) != os.getppid():
        return None
    return Place(int(supervisor), int(number), socket)
