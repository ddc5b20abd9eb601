"""Closes Readers and Writers when Python exits, then stops the I/O thread.

This module closes only the Readers and Writers of the I/O thread and of the main thread's hub.  Readers send REQ 0 for
all messages in flight, also for those of running handlers, because handler threads end with the process.  Writers wait
for the outcomes of their publishes.  A killed process sends nothing, and nsqd requeues its messages after their
timeout.
"""

from __future__ import annotations

import atexit
import logging
from os import getpid
from typing import Protocol

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.io_thread import on_fork, reset_after_fork, stop_io_thread
from gnsq_lite.net.loop import Core, all_loops
from gnsq_lite.net.os_threads import WeakGroup
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import start_in_loop

log = logging.getLogger("gnsq_lite.net")

#: Time limit, in seconds, for all that the library does when Python exits.
TIME_LIMIT = 3.0
#: Seconds of TIME_LIMIT that are left for the end of the I/O thread, and for the error of a loop that is too slow.
_TO_STOP, _GRACE = 0.5, 0.1

#: Id of the process in which :func:`_close_all` is registered with atexit.
_pid = getpid()
_threads = WeakGroup()


class ThreadsOfWriter(Protocol):
    """The part of a Writer through which plain threads publish."""

    closing: bool

    def close(self, seconds: float) -> None:
        """Wait at most *seconds* for publishes, and close all connections."""


def close_at_exit(core: Core) -> None:
    """Register *core* to be closed when Python exits.  The loop keeps only a weak reference to *core*."""
    core.loop.cores.add(core)
    _register()


def close_threads_at_exit(threads: ThreadsOfWriter) -> None:
    """Register *threads* to be closed when Python exits, because daemon threads may be publishing."""
    _threads.add(threads)
    _register()


def _register() -> None:
    global _pid
    if getpid() != _pid:
        _pid = getpid()
        atexit.unregister(_close_all)  # a child of os.fork() has the parent's registration; multiprocessing drops it
        atexit.register(_close_all)


def _close_all() -> None:
    reset_after_fork()
    ends = SYSTEM_CLOCK.now() + TIME_LIMIT - _TO_STOP  # one deadline for all
    try:
        closing = [
            start_in_loop(loop, _close, loop.cores.members())
            for loop in all_loops()
            if (loop.is_shared or loop.is_here()) and loop.cores.members()
        ]
        for threads in _threads.members():
            threads.close(max(0.0, ends - SYSTEM_CLOCK.now()))
        for closed in closing:
            try:
                lost = closed.result(max(0.0, ends - SYSTEM_CLOCK.now()) + _GRACE)
            except TimeoutError:
                said = "Python exits while something blocks the I/O loop: published messages may be lost"
                log_safely(log, logging.WARNING, said)
            else:
                if lost:
                    said = "Python exits: %d published messages have no outcome and may be lost"
                    log_safely(log, logging.WARNING, said, lost)
    finally:
        stop_io_thread(max(0.0, ends - SYSTEM_CLOCK.now()) + _TO_STOP)


def _close(cores: list[Core]) -> int:
    tasks = [core.loop.spawn("close", core.close_for_exit, TIME_LIMIT - _TO_STOP) for core in cores]
    for task in tasks:
        task.join()
    return sum(task.value or 0 for task in tasks)


on_fork(_threads.clear)
atexit.register(_close_all)  # runs after the program's atexit functions, which are registered later
