"""What is still done when the interpreter ends without ``close()``: nothing waits for nsqd's time-out, little is lost.

Messages go back with REQ 0 at once, those of running handlers too, whose threads end with the process.  Publishes that
are on their way have a few seconds for their outcome.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Protocol

import gevent

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.forks import on_fork
from gnsq_lite.net.io_thread import before_exit
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import run_in_loop

log = logging.getLogger("gnsq_lite.net")

#: Seconds that publishes and answers have to go.
PATIENCE = 3.0
#: Seconds between two looks.
_LOOK = 0.01


class Leaves(Protocol):
    """What has connections: a Reader's or a Writer's core."""

    loop: Loop

    def leave(self) -> Callable[[], str]:
        """Send at once what can be sent; return what says what is still to go, "" when nothing is.

        Both are called in the loop's thread, in a greenlet.
        """


_all: weakref.WeakSet[Leaves] = weakref.WeakSet()


def leave_at_exit(core: Leaves) -> None:
    """Have *core* leave in order when the interpreter ends; held weakly."""
    _all.add(core)


def leave_all(own: Loop | None) -> None:
    """Have every core leave, that of the library's loop *own* and those of the caller's; takes a bounded time."""
    loops = {core.loop for core in _all if not core.loop.gone and (core.loop is own or core.loop.is_here())}
    for loop in loops:
        try:
            left = run_in_loop(loop, _leave, [core for core in _all if core.loop is loop], timeout=PATIENCE + 1.0)
        except TimeoutError:
            left = "an unknown number of messages and publishes, as something blocks the I/O loop"
        if left:
            log_safely(log, logging.WARNING, "the interpreter ends without close(), and this did not go: %s", left)


def _leave(cores: list[Leaves]) -> str:
    asks = [core.leave() for core in cores]
    ends = SYSTEM_CLOCK.now() + PATIENCE
    while True:
        left = [said for said in (ask() for ask in asks) if said]
        if not left or SYSTEM_CLOCK.now() > ends:
            return ", ".join(left)
        gevent.sleep(_LOOK)


def forget_all() -> None:
    """In a forked child: what was made in the parent leaves there."""
    _all.clear()


before_exit(leave_all)
on_fork(forget_all)
