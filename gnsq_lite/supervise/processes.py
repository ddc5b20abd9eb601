"""The supervisor starts, restarts, replaces and gracefully stops processes."""

from __future__ import annotations

import logging
import os
import queue
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.supervise.children import NEVER, PRINT_AND_END, Child
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.supervise.notify import Notifier
from gnsq_lite.supervise.restarts import Restarts
from gnsq_lite.supervise.rolling import Rolling
from gnsq_lite.supervise.shared_memory import GroupMemory, ProcessMemory

log = logging.getLogger("gnsq_lite.supervise")

#: Seconds from the end of the drain limit, or from SIGQUIT, to SIGKILL.
GRACE = 10.0
#: Seconds within which a new process must become ready.
READY_TIMEOUT = 60.0
#: Seconds between two checks while a process starts, and while all processes run.
_CHECK_STARTING, _CHECK_EVERY = 0.05, 0.5
#: Seconds without a check after which the supervisor reports itself as stuck.
_STUCK = 30.0
_ENDING, _PAUSING = (signal.SIGTERM, signal.SIGINT), (signal.SIGUSR1, signal.SIGUSR2)
#: Longest path of the temporary directory, in bytes.  The path of a Unix socket has at most 103 bytes on macOS.
_LONGEST = 103 - len("/gnsq-XXXXXXXX/999999999.sock")


@dataclass
class Supervisor:
    """Keeps *count* processes of one command running until SIGTERM or SIGINT, or until the first load ends with USAGE.

    After the first signal it sends SIGTERM, and the processes drain.  After a second signal it sends SIGQUIT, and the
    processes stop at once.  It kills processes that hang or do not end in time.  After SIGHUP, or at a process's own
    request, it replaces processes one by one: an old process drains when at least as many handlers of the new process
    are ready to receive messages.  SIGUSR1 pauses all handlers, and SIGUSR2 resumes them.
    """

    command: Sequence[str]
    count: int
    #: Seconds between the end of a process's drain limit and SIGKILL.
    grace: float = GRACE
    #: Seconds within which a new process must become ready.  If it is late, the old processes keep running.
    ready_timeout: float = READY_TIMEOUT
    clock: Clock = SYSTEM_CLOCK
    notifier: Notifier = field(default_factory=lambda: Notifier({}))

    def __post_init__(self) -> None:
        #: Numbers of the received signals, in order.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        #: Number of received stop signals, and number of started processes.
        self._stops, self._started = 0, 0
        self._is_up, self._is_reloading, self._is_announced = False, False, False
        self._codes: list[int] = []
        #: Number of processes that were killed because they hung.
        self.hung = 0
        parent = tempfile.gettempdir()
        self._parent, self._folder = parent if len(os.fsencode(parent)) <= _LONGEST else "/tmp", ""
        tempfile.TemporaryFile(dir=self._parent).close()  # fails before anything is started
        self._checked_at = self.clock.now()
        self.children: list[Child] = []
        #: Processes that drain: replaced processes, and new processes that did not become ready.
        self._draining: list[Child] = []
        self._rolling = Rolling(self.ready_timeout)

    def run(self) -> int:
        """Run in the main thread until all processes have ended, and return the :class:`ExitCode`."""
        with tempfile.TemporaryDirectory(prefix="gnsq-", dir=self._parent, ignore_cleanup_errors=True) as self._folder:
            self._memory = GroupMemory(self._folder)
            try:
                self.children = [Child(number, Restarts(self.clock)) for number in range(self.count)]
                with self._signal_handlers():
                    self.children[0].start_at = self.clock.now()
                    while self._step():
                        pass
            finally:
                self._signal_all(signal.SIGKILL)
        return self._code()

    def is_well(self) -> bool:
        """Return whether the supervisor still checks its processes.  Thread-safe."""
        return self.clock.now() - self._checked_at < _STUCK

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor is stopping."""
        return self._stops > 0

    def all_children(self) -> list[Child]:
        """Return the processes, those that drain, and the new one that will replace another."""
        new = self._rolling.replacement
        return [*self.children, *self._draining, *([] if new is None else [new])]

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        numbers = (*_ENDING, *_PAUSING, signal.SIGHUP, signal.SIGCHLD)
        before = [(number, signal.signal(number, self._on_signal)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signals.put(number)  # SimpleQueue.put() may be called in a signal handler

    def _step(self) -> bool:
        """Do the actions that are due, and wait for the next event.  Return False after all processes have ended."""
        now = self._checked_at = self.clock.now()
        self._start_others(now)
        if self._is_up and not self._stops:
            self._continue_replacing(now)
        for child in self.all_children():
            if child.pid is None and child.start_at <= now:
                self._start(child)
            elif child.pid is not None and child.kill_at <= now:
                log.error("process %d does not end in time; killing it", child.number, extra=child.extra)
                child.kill_at = NEVER
                child.send(signal.SIGKILL)
            elif child.memory is not None and (seconds := child.memory.hangs_for(now)):
                self._kill_hung(child, child.memory, seconds)
        self._announce()
        if self._stops and all(child.pid is None for child in self.all_children()):
            return False
        due = min(child.start_at if child.pid is None else child.kill_at for child in self.all_children())
        is_calm = self._stops or (self._is_up and self._rolling.replacement is None)
        longest = min(_CHECK_EVERY if is_calm else _CHECK_STARTING, self.notifier.due - now)
        try:
            number = self._signals.get(timeout=max(0.001, min(due - now, longest)))
        except queue.Empty:
            return True
        self._act_on(number)
        return True

    def _kill_hung(self, child: Child, memory: ProcessMemory, seconds: float) -> None:
        text = "process %d hangs: its I/O loop has not run for %.0f s; killing it; last message begun: %s"
        begun, arguments = memory.begun, (child.number, seconds, memory.begun or "unknown")
        extra, stacks = {**child.extra, "begun": begun}, child.stacks(PRINT_AND_END) or None
        log.handle(
            log.makeRecord(log.name, logging.ERROR, "", 0, text, arguments, None, extra=extra, sinfo=stacks)
        )  # Logger.error() takes no stack of another process
        self.hung, memory.hang_timeout = self.hung + 1, 0
        child.send(signal.SIGKILL)

    def _start_others(self, now: float) -> None:
        """After the first process has loaded the Worker, start the others.  So a load error is printed only once."""
        if not self._is_up and not self._stops and self.children[0].is_loaded:
            self._is_up = True
            for child in self.children[1:]:
                child.start_at = now

    def _continue_replacing(self, now: float) -> None:
        rolling = self._rolling
        if rolling.is_late(now):
            self._give_up(f"was not ready within {self.ready_timeout:g} s")
        old = rolling.take_over(self.children)
        if old is not None:
            self._drain(old)
        if rolling.replacement is None and not rolling.begin(self.children, now) and self._is_reloading:
            self._is_reloading = False
            self.notifier.ready()

    def _give_up(self, why: str) -> None:
        new = self._rolling.replacement
        self._rolling.give_up(self.children, why)
        if new is not None and new.pid is not None:
            self._drain(new)

    def _drain(self, child: Child) -> None:
        self._draining.append(child)
        child.stop(signal.SIGTERM, self.clock.now(), self.grace)

    def _announce(self) -> None:
        """Report the state to the service manager."""
        self.notifier.alive()
        if self._stops:
            count = sum(child.pid is not None for child in self.all_children())
            self.notifier.status(f"stopping: {count} processes are running")
            return
        ready = sum(child.is_ready for child in self.children)
        self.notifier.status(f"{ready} of {self.count} processes ready")
        if not self._is_announced and all(child.is_loaded for child in self.children):
            self._is_announced = True
            self.notifier.ready()

    def _act_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            if not self._stops:
                self._replace_all()
        elif number in _PAUSING:
            log.info("%s all handlers", "pausing" if number == signal.SIGUSR1 else "resuming")
            self._memory.pause(number == signal.SIGUSR1)
        else:
            self._stop()

    def _replace_all(self) -> None:
        log.info("replacing every process")
        now = self.clock.now()
        self._start_others(now)
        if self._is_announced:
            self._is_reloading = True
            self.notifier.reloading()
        for child in self.children:
            child.start_at = min(child.start_at, now) if child.start_at != NEVER else NEVER
            child.replace_at = now
        if self._rolling.replacement is not None:
            self._rolling.replacement.replace_at = now  # this process may have loaded the old code
        if not self._is_up:
            self.children[0].replaced = self.children[0].pid is not None
            self._signal_all(signal.SIGTERM)

    def _stop(self) -> None:
        self._stops += 1
        for child in self.all_children():
            child.start_at = NEVER
        if self._stops == 1:
            log.info("stopping; a second signal stops at once")
            self.notifier.stopping()
            self._signal_all(signal.SIGTERM)
        else:
            log.warning("stopping at once")
            self._signal_all(signal.SIGQUIT)

    def _signal_all(self, number: int) -> None:
        for child in self.all_children():
            child.stop(number, self.clock.now(), self.grace)

    def _start(self, child: Child) -> None:
        self._started += 1
        try:
            child.start(self.command, os.path.join(self._folder, f"{self._started}.sock"))
        except OSError as error:
            child.start_at = self.clock.now() + child.restarts.ended()
            log.error("process %d could not be started: %s", child.number, error, extra=child.extra)
        else:
            log.info("process %d started", child.number, extra=child.extra)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self.all_children():  # if the supervisor is PID 1, *pid* may also be an inherited orphan
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        extra = {**child.extra, "exit": code}
        child.ended(code)
        self._memory.process_ended()
        if child in self._draining:
            self._draining.remove(child)
            log.info("process %d, which was draining, ended (%d)", child.number, code, extra=extra)
            self._note_code(code)
        elif child is self._rolling.replacement:
            self._replacement_ended(child, code)
        elif self._stops:
            self._note_code(code)
            log.info("process %d ended (%d)", child.number, code, extra=extra)
        elif self._rolling.replacement is not None and self._rolling.replacement.number == child.number:
            log.error("process %d ended (%d); the new process replaces it", child.number, code, extra=extra)
            self.children[child.number], self._rolling.replacement = self._rolling.replacement, None
        else:
            self._start_again(child, code, extra)

    def _replacement_ended(self, child: Child, code: int) -> None:
        if self._stops:
            self._note_code(code)
        elif code == ExitCode.RELOAD:
            child.start_at = self.clock.now()
        else:
            self._give_up(f"ended ({code}) before it was ready")

    def _start_again(self, child: Child, code: int, extra: dict[str, Any]) -> None:
        if code == ExitCode.USAGE and not self._is_up:
            self._codes.append(code)
            self._stop()  # the process printed the error; a restart would not help
        elif code == ExitCode.RELOAD or child.replaced:
            log.info("process %d ended; starting it again", child.number, extra=extra)
            child.start_at = self.clock.now()
        else:
            delay = child.restarts.ended()
            child.start_at = self.clock.now() + delay
            log.error("process %d ended (%d); starting it again in %g s", child.number, code, delay, extra=extra)

    def _note_code(self, code: int) -> None:
        # After a process has loaded the Worker, USAGE means that changed code does not load.
        if self._stops and not (self._is_up and code == ExitCode.USAGE):
            self._codes.append(code)

    def _code(self) -> int:
        # Death by SIGTERM is no error: the process was still loading, or had drained and was about to exit.
        codes = set(self._codes) - {ExitCode.OK, ExitCode.RELOAD, -signal.SIGTERM}
        for code in (ExitCode.USAGE, ExitCode.FAILED):
            if code in codes:
                return code
        return ExitCode.NOT_DRAINED if codes else ExitCode.OK
