"""Closes all Readers and Writers when Python exits, then stops the I/O thread.

Readers requeue all messages in flight at once with REQ 0, including the messages of running handlers, because handler
threads end with the process.  Writers wait for the outcome of publishes under way.  A killed process sends no REQ; nsqd
requeues its messages after their timeout.
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
#: Seconds, besides TIME_LIMIT, for which the main thread waits for the loop.
_GRACE = 0.5

#: Id of the process in which :func:`_close_all` is registered with atexit.
_pid = getpid()


def close_at_exit(core: Core) -> None:
    """Close *core* when Python exits.  Only a weak reference to *core* is kept."""
    global _pid
    core.loop.cores.add(core)
    if getpid() != _pid:
        _pid = getpid()
        atexit.unregister(_close_all)  # a child of os.fork() keeps the registration, multiprocessing drops it
        atexit.register(_close_all)


def _close_all() -> None:
    look_for_fork()
    try:
        for loop in [each for each in all_loops() if (each.is_shared or each.is_here()) and each.cores]:
            try:
                lost = run_in_loop(loop, _close, list(loop.cores), timeout=TIME_LIMIT + _GRACE)
            except TimeoutError:
                said = "Python exits while the I/O loop is blocked: publishes may be lost"
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


atexit.register(_close_all)  # registered before the program's own atexit functions, so it runs after them
