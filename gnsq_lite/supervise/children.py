"""Starts and stops one process of a supervisor, and reads its memory.

Each process is a new interpreter (posix_spawn of the supervisor's command line), not a fork.  A fork could not reload
the parent's code, could not run --patch before any import, and would copy locks that other threads hold.  On the other
hand, a new interpreter starts more slowly than a fork, and does not share the memory of imported modules.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gnsq_lite.supervise.restarts import Restarts
from gnsq_lite.supervise.shared_memory import ProcessMemory
from gnsq_lite.supervise.slots import VARIABLE, Slot

NEVER = float("inf")

#: Signals at which a supervised process writes its Python stacks to a file, also while a thread holds the GIL.  At the
#: second one it then ends.
PRINT_STACKS, PRINT_AND_END = signal.SIGPROF, signal.SIGVTALRM
#: Seconds within which a process writes its stacks.
_PRINTING = 0.5

#: Drain limit, in seconds, of a process that has not loaded its Worker yet.
_DRAIN_TIMEOUT = 30.0


@dataclass(eq=False)
class Child:
    """One process of a supervisor, running or about to start."""

    number: int
    restarts: Restarts
    #: Path of the Unix socket on which the process serves its status pages.  Each start has a new path.
    socket: str = ""
    pid: int | None = None
    #: Memory shared with the process, or None while the process does not run.
    memory: ProcessMemory | None = None
    start_at: float = NEVER
    kill_at: float = NEVER
    #: Time at which a new process should replace this process.
    replace_at: float = NEVER
    #: Whether the supervisor stopped this process in order to start it again.
    replaced: bool = False
    #: Exit code of the last process with this number.  A negative number is the signal that killed the process.
    last_exit: int | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the process has loaded its Worker."""
        return self.pid is not None and os.path.exists(self.socket)

    @property
    def is_ready(self) -> bool:
        """Whether all handlers of the process are ready to receive messages."""
        return self.memory is not None and 0 < self.memory.handlers == self.memory.ready

    def may_replace(self, other: Child) -> bool:
        """Return whether all handlers of this process are ready, or at least as many as in the process *other*."""
        if self.memory is None or not self.memory.handlers:
            return False
        return self.is_ready or other.memory is None or self.memory.ready >= other.memory.ready

    @property
    def extra(self) -> dict[str, Any]:
        """Fields of the process for a log line."""
        return {"worker": self.number, "pid": self.pid}

    def start(self, command: Sequence[str], socket: str) -> None:
        """Start the process.  Raises OSError."""
        self.start_at, self.kill_at, self.replace_at, self.replaced = NEVER, NEVER, NEVER, False
        self.socket = socket
        self.restarts.started()
        memory = ProcessMemory(socket)
        memory.drain_timeout = _DRAIN_TIMEOUT
        self.pid = os.posix_spawn(
            command[0],
            tuple(command),
            {**os.environ, VARIABLE: Slot(os.getpid(), self.number, socket).text()},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setpgroup=0,  # Ctrl-C reaches only the supervisor, which forwards one signal to each process
            setsigmask=(),
        )
        self.memory = memory

    def stop(self, number: int, now: float, grace: float) -> None:
        """Send the signal *number* to the process, and schedule SIGKILL for *grace* seconds later.

        For SIGTERM, the process gets its drain limit in addition to *grace*.
        """
        if self.memory is None:
            return
        if number == signal.SIGTERM:
            grace += self.memory.drain_timeout
        self.kill_at = min(self.kill_at, now + grace)
        self.send(number)

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def stacks_file(self) -> str:
        """Path of the file for the stacks, which the process creates when it handles PRINT_STACKS."""
        return f"{self.socket}.stacks"

    def stacks(self, number: int = PRINT_STACKS) -> str:
        """Send *number*, and return the Python stacks of the process, or "".  Takes half a second."""
        if self.memory is None or not self.memory.ticks or not os.path.exists(self.stacks_file):
            return ""  # the signal would end the process
        with suppress(OSError):  # the process may end meanwhile
            os.truncate(self.stacks_file, 0)
            self.send(number)
            time.sleep(_PRINTING)
            with open(self.stacks_file, errors="replace") as file:
                return file.read().rstrip()
        return ""

    def ended(self, code: int) -> None:
        """Record the exit code of the process, and remove its files."""
        self.pid, self.memory, self.kill_at, self.last_exit = None, None, NEVER, code
        for path in (self.socket, f"{self.socket}.memory", self.stacks_file):
            with suppress(FileNotFoundError):
                os.unlink(path)
