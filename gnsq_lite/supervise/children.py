"""One process of a supervisor: started, ended, and its reports read.

Each is a new interpreter (posix_spawn of the supervisor's own command line), not a fork: code loaded once in the parent
could not be reloaded, a fork beside threads or an event loop copies locks that are held, and --patch must come before
any import.  The price is the start of an interpreter, and no shared memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gnsq_lite.supervise.report_files import VARIABLE, Report, Slot, remove_reports, reported_limit, reported_ready
from gnsq_lite.supervise.restarts import Restarts
from gnsq_lite.supervise.shared_memory import Pulse

NEVER = float("inf")

#: Seconds to drain before the process has reported a limit; it is still loading, so it has nothing to drain.
_LIMIT = 30.0


@dataclass(eq=False)
class Child:
    """One process, running or to be started."""

    number: int
    restarts: Restarts
    #: Path of the Unix socket of its status pages; a new one for each start.
    socket: str = ""
    pid: int | None = None
    #: Its signs of life; None once it was killed for having none.
    pulse: Pulse | None = None
    start_at: float = NEVER
    kill_at: float = NEVER
    #: When a new process should take its place.
    stale_at: float = NEVER
    #: Whether it was ended so that a new one can start.
    replaced: bool = False
    #: The exit code of the last process here; a negative number is the signal that ended it.
    last_exit: int | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether it has loaded its Worker."""
        return self.pid is not None and os.path.exists(self.socket)

    @property
    def is_ready(self) -> bool:
        """Whether each of its handlers can receive messages."""
        ready, handlers = reported_ready(self.socket)
        return self.pid is not None and 0 < handlers == ready

    def may_replace(self, other: Child) -> bool:
        """Whether it is ready, or as ready as *other*: where no nsqd has a topic yet, neither is ready."""
        ready, handlers = reported_ready(self.socket)
        return handlers > 0 and (ready == handlers or ready >= reported_ready(other.socket)[0])

    @property
    def extra(self) -> dict[str, Any]:
        """Its fields for a log line."""
        return {"worker": self.number, "pid": self.pid}

    def start(self, command: Sequence[str], environ: Mapping[str, str], socket: str) -> None:
        """Start it.  Raises OSError."""
        self.start_at, self.kill_at, self.stale_at, self.replaced = NEVER, NEVER, NEVER, False
        self.socket = socket
        self.restarts.started()
        self.pulse = Pulse(socket)
        self.pid = os.posix_spawn(
            command[0],
            tuple(command),
            {**environ, VARIABLE: Slot(os.getpid(), self.number, socket).text()},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setpgroup=0,  # Ctrl-C comes to the supervisor alone, which passes it on once
            setsigmask=(),
        )

    def tell(self, number: int, now: float, grace: float, limit: float | None) -> None:
        """Send it a signal to end; kill it after *grace* seconds, and for SIGTERM *limit* seconds more.

        With None, *limit* is what the process has reported.
        """
        if self.pid is None:
            return
        if number == signal.SIGTERM:
            told = reported_limit(self.socket) if limit is None else limit
            grace += _LIMIT if told is None else told
        self.kill_at = min(self.kill_at, now + grace)
        self.send(number)

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended(self, code: int) -> None:
        """Note that it has ended, and remove its files."""
        self.pid, self.kill_at, self.last_exit = None, NEVER, code
        self.pulse = None
        remove_reports(self.socket, *Report)
        with suppress(FileNotFoundError):
            os.unlink(self.socket)
