"""The slot that a supervisor gives to each of its processes in an environment variable."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

#: Environment variable with the slot.  A process has its supervisor's command line, and in addition this variable.
VARIABLE = "GNSQ_LITE_SUPERVISED"


@dataclass(frozen=True)
class Slot:
    """A process's slot under its supervisor."""

    #: Process id of the supervisor.
    supervisor: int
    #: Number of the process, from 0.
    number: int
    #: Path of the Unix socket on which the process serves its status pages.
    socket: str

    def text(self) -> str:
        """Return the value of :data:`VARIABLE`."""
        return f"{self.supervisor}:{self.number}:{self.socket}"

    def is_orphaned(self, parent: Callable[[], int] = os.getppid) -> bool:
        """Return whether the supervisor has ended.  This process must then end too."""
        return parent() != self.supervisor


def take_slot(environ: MutableMapping[str, str] = os.environ) -> Slot | None:
    """Return this process's slot, or None if no supervisor started this process.

    Remove the variable, so that child processes of this process have no slot.  Raise SystemExit if the supervisor in
    the slot is not the parent of this process, because this process must not become another supervisor.
    """
    text = environ.pop(VARIABLE, "")
    supervisor, _, rest = text.partition(":")
    number, _, socket = rest.partition(":")
    if not text:
        return None
    if not (supervisor.isdigit() and number.isdigit() and socket) or int(supervisor) != os.getppid():
        raise SystemExit(f"gnsq-lite: {VARIABLE}={text} names a supervisor that is not the parent of this process")
    return Slot(int(supervisor), int(number), socket)
