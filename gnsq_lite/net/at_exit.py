"""What is still done when the interpreter exits without ``close()``: nothing waits for nsqd's time-out, little is lost.

Messages go back with REQ 0 at once, those of running handlers too, because their threads end with the process.
Publishes that have been sent get a few seconds for their outcome.

A child that multiprocessing has forked ends by ``os._exit()``.  What its parent registered with atexit is not called
there, before Python 3.13 nothing is; so it leaves by multiprocessing's own list.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import gevent

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.forks import on_fork
from gnsq_lite.net.io_thread import act_before_exit, before_exit
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import run_in_loop

log = logging.getLogger("gnsq_lite.net")

#: Seconds for publishes to be answered and messages to go back.
PATIENCE = 3.0
#: Seconds between two checks.
_LOOK = 0.01

#: Multiprocessing calls what has the lowest number last: until then anything may publish.
_LAST = -1_000_000

#: How many are still on their way, and what to say of them if they stay so.
Left = tuple[int, str]


class Leaves(Protocol):
    """What has connections: a Reader's or a Writer's core."""

    loop: Loop

    def leave(self) -> Callable[[], Left | None]:
        """Send at once what can be sent; return a function that tells what is still on its way, None when all is done.

        Both are called in the loop's thread, in a greenlet.
        """


_all: weakref.WeakSet[Leaves] = weakref.WeakSet()
_leaves_with_child = False


def leave_at_exit(core: Leaves) -> None:
    """Have *core* leave in order when the interpreter ends; held weakly."""
    _all.add(core)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        _leave_with_child()


def _leave_with_child() -> None:
    """In a child of multiprocessing's: have all leave when it ends."""
    global _leaves_with_child
    from multiprocessing.util import Finalize, is_exiting  # which is there: importing may meet a fork

    if not _leaves_with_child:
        _leaves_with_child = True
        if is_exiting():
            _leave_soon()
        else:
            Finalize(None, _leave_child, exitpriority=_LAST)


def _leave_child() -> None:
    if threading.main_thread().is_alive():
        _leave_soon()
    else:  # all threads were waited for, as since Python 3.13
        act_before_exit()


def _leave_soon() -> None:
    """Leave when all threads that the child waits for have ended, and have it wait for that."""
    threading.Thread(target=_leave_after_others, name="gnsq_lite-exit", daemon=False).start()


def _leave_after_others() -> None:
    mine = (threading.current_thread(), threading.main_thread())
    while others := [thread for thread in threading.enumerate() if not (thread.daemon or thread in mine)]:
        others[0].join()
    act_before_exit()


def leave_all(own: Loop | None) -> None:
    """Have every core leave, that of the library's loop *own* and those of the caller's; takes a bounded time."""
    loops = {core.loop for core in _all if not core.loop.gone and (core.loop is own or core.loop.is_here())}
    for loop in loops:
        try:
            lines = run_in_loop(loop, _leave, [core for core in _all if core.loop is loop], timeout=PATIENCE + 1.0)
        except TimeoutError:
            lines = ["something blocks the I/O loop, so messages were not sent back and publishes may be lost"]
        for line in lines:
            log_safely(log, logging.WARNING, "the interpreter exits without close(): %s", line)


def _leave(cores: list[Leaves]) -> list[str]:
    asks = [core.leave() for core in cores]
    ends = SYSTEM_CLOCK.now() + PATIENCE
    while True:
        left = [told for told in (ask() for ask in asks) if told is not None]
        if not left or SYSTEM_CLOCK.now() > ends:
            counts: Counter[str] = Counter()
            for count, what in left:
                counts[what] += count
            return [f"{what}: {count}" for what, count in counts.items() if count]
        gevent.sleep(_LOOK)


def forget_all() -> None:
    """In a forked child: what was made in the parent leaves there."""
    global _leaves_with_child
    _leaves_with_child = False
    _all.clear()


before_exit(leave_all)
on_fork(forget_all)
