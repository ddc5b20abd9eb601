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

from gnsq_lite.net.io_thread import look_for_fork, stop_io_thread
from gnsq_lite.net.loop import Core, all_loops
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import run_in_loop

log = logging.getLogger("gnsq_lite.net")

#: Time limit, in seconds, for closing all Readers and Writers of a loop.
TIME_LIMIT = 3.0
#: Seconds that the main thread waits for the loop in addition to TIME_LIMIT.
_GRACE = 0.5

#: Id of the process in which :func:`_close_all` is registered with atexit.
_pid = getpid()


def close_at_exit(core: Core) -> None:
    """Register *core* to be closed when Python exits.  The loop keeps only a weak reference to *core*."""
    global _pid
    core.loop.cores.add(core)
    if getpid() != _pid:
        _pid = getpid()
        atexit.unregister(_close_all)  # a child of os.fork() has the parent's registration; multiprocessing drops it
        atexit.register(_close_all)


def _close_all() -> None:
    look_for_fork()
    try:
        for loop in [each for each in all_loops() if (each.is_shared or each.is_here()) and each.cores]:
            try:
                lost = run_in_loop(loop, _close, list(loop.cores), timeout=TIME_LIMIT + _GRACE)
            except TimeoutError:
                said = "Python exits while something blocks the I/O loop: published messages may be lost"
                log_safely(log, logging.WARNING, said)
            else:
                if lost:
                    said = "Python exits: %d published messages have no outcome and may be lost"
                    log_safely(log, logging.WARNING, said, lost)
    finally:
        stop_io_thread()


def _close(cores: list[Core]) -> int:
    tasks = [core.loop.spawn("close", core.close_for_exit, TIME_LIMIT) for core in cores]
    for task in tasks:
        task.join()
    return sum(task.value or 0 for task in tasks)


atexit.register(_close_all)  # runs after the program's atexit functions, which are registered later
