"""The supervisor: starts processes, starts them again, ends them in order.

Each process is a new interpreter (posix_spawn of the supervisor's own command line), not a fork: code that is loaded
once in the parent could not be reloaded, a fork beside threads or an event loop takes locked locks with it, and the
child's --patch must come before any import.  It costs the start of an interpreter, and no memory is shared.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.supervise.exits import Exit
from gnsq_lite.supervise.place import VARIABLE, Place, told_limit
from gnsq_lite.supervise.restarts import Restarts

log = logging.getLogger("gnsq_lite.supervise")

#: Seconds a process has beyond its drain limit, or after it was told to end at once, before it is killed.
GRACE = 10.0
#: Seconds between two looks whether the first process has come up, and at nothing in particular.
_COMING_UP, _LOOK = 0.05, 5.0

#: Seconds to drain where nobody has said; the process loads what it is to run, so it has nothing to drain.
_LIMIT = 30.0

_NEVER = float("inf")

#: Bytes of a folder below which /gnsq-XXXXXXXX/1023.sock is a path for a Unix socket: 107, on macOS 103.
_LONGEST = 103 - len("/gnsq-XXXXXXXX/1023.sock")


@dataclass
class Child:
    """One process, running or to be started."""

    number: int
    socket: str
    restarts: Restarts
    pid: int | None = None
    start_at: float = _NEVER
    kill_at: float = _NEVER
    #: Told to end so that a new one takes its place.
    replaced: bool = False


@dataclass
class Supervisor:
    """Keeps *count* processes of one command running until SIGTERM or SIGINT.

    The first signal lets them drain (SIGTERM to each), the second ends them at once (SIGQUIT); who does not end in
    time is killed.  SIGHUP has them drain and starts new ones.  As PID 1 of a container it reaps orphans too.
    """

    command: Sequence[str]
    count: int
    #: Seconds a process may take to drain; None: what the process says itself (:meth:`Place.tell_limit`).
    drain_timeout: float | None = None
    #: Seconds it has beyond that before it is killed.
    grace: float = GRACE
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stages = 0
        self._is_up = False
        self._codes: list[int] = []
        self.children: list[Child] = []

    def run(self) -> int:
        """Run to the end and return the exit code (:class:`Exit`).  In the main thread."""
        folder = tempfile.mkdtemp(prefix="gnsq-", dir=_folder_for_sockets())
        try:
            sockets = (os.path.join(folder, f"{number}.sock") for number in range(self.count))
            self.children = [Child(n, path, Restarts(self.clock)) for n, path in enumerate(sockets)]
            with self._listening():
                self.children[0].start_at = self.clock.now()
                while self._step():
                    pass
        finally:
            self._tell(signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
        return self._code()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = [(number, signal.signal(number, self._note)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self._told.put(number)  # SimpleQueue.put() may be called in a signal handler

    def _step(self) -> bool:
        """Do what is due, then wait for what comes next; return False when all has ended."""
        now = self.clock.now()
        self._look_for_the_first(now)
        for child in self.children:
            if child.pid is None and child.start_at <= now:
                self._start(child)
            elif child.pid is not None and child.kill_at <= now:
                log.error("process %d does not end; it is killed", child.number, extra=_extra(child))
                child.kill_at = _NEVER
                _send(child.pid, signal.SIGKILL)
        if self._stages and all(child.pid is None for child in self.children):
            return False
        due = min(child.start_at if child.pid is None else child.kill_at for child in self.children)
        longest = _LOOK if self._is_up or self._stages else _COMING_UP
        try:
            number = self._told.get(timeout=max(0.001, min(due - now, longest)))
        except queue.Empty:
            return True
        self._act_on(number)
        return True

    def _look_for_the_first(self, now: float) -> None:
        """Start the others once the first has loaded what it runs: an error in that is shown once."""
        if not self._is_up and not self._stages and os.path.exists(self.children[0].socket):
            self._is_up = True
            for child in self.children[1:]:
                child.start_at = now

    def _act_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            if not self._stages:
                log.info("starting every process anew")
                for child in self.children:
                    child.replaced = child.pid is not None
                self._tell(signal.SIGTERM)
        else:
            self._stop()

    def _stop(self) -> None:
        self._stages += 1
        for child in self.children:
            child.start_at = _NEVER
        if self._stages == 1:
            log.info("stopping; once more to stop at once")
            self._tell(signal.SIGTERM)
        else:
            log.warning("stopping at once")
            self._tell(signal.SIGQUIT)

    def _tell(self, number: int) -> None:
        for child in self.children:
            if child.pid is not None:
                seconds = self.grace + (self._limit(child) if number == signal.SIGTERM else 0.0)
                child.kill_at = min(child.kill_at, self.clock.now() + seconds)
                _send(child.pid, number)

    def _limit(self, child: Child) -> float:
        if self.drain_timeout is not None:
            return self.drain_timeout
        told = told_limit(child.socket)
        return _LIMIT if told is None else told

    def _start(self, child: Child) -> None:
        place = Place(os.getpid(), child.number, child.socket)
        try:
            os.unlink(child.socket)
        except FileNotFoundError:
            pass
        child.start_at, child.kill_at, child.replaced = _NEVER, _NEVER, False
        child.restarts.started()
        try:
            child.pid = os.posix_spawn(
                self.command[0],
                tuple(self.command),
                {**self.environ, VARIABLE: place.text()},
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setpgroup=0,  # Ctrl-C comes to the supervisor alone, which passes it on once
                setsigmask=(),
            )
        except OSError as error:
            child.start_at = self.clock.now() + child.restarts.ended()
            log.error("process %d could not be started: %s", child.number, error, extra=_extra(child))
        else:
            log.info("process %d started", child.number, extra=_extra(child))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self.children:  # another one: an orphan that came to PID 1
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        extra = {**_extra(child), "exit": code}
        child.pid, child.kill_at = None, _NEVER
        if self._stages:
            self._codes.append(code)
            log.info("process %d ended (%d)", child.number, code, extra=extra)
        elif code == Exit.USAGE and not self._is_up:
            self._codes.append(code)
            self._stop()  # it has said why; no new start would mend it
        elif code == Exit.RELOAD or child.replaced:
            log.info("process %d ended to be started anew", child.number, extra=extra)
            child.start_at = self.clock.now()
        else:
            delay = child.restarts.ended()
            child.start_at = self.clock.now() + delay
            log.error("process %d ended (%d); starting it again in %g s", child.number, code, delay, extra=extra)

    def _code(self) -> int:
        # SIGTERM itself ends a process that is loading still, or that has drained and is about to end.
        codes = set(self._codes) - {Exit.OK, Exit.RELOAD, -signal.SIGTERM}
        for code in (Exit.USAGE, Exit.FAILED):
            if code in codes:
                return code
        return Exit.NOT_DRAINED if codes else Exit.OK


def _folder_for_sockets() -> str:
    """Return the folder for temporary files, or /tmp where its path is too long for that of a Unix socket."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST else "/tmp"


def _extra(child: Child) -> dict[str, Any]:
    return {"worker": child.number, "pid": child.pid}


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
