"""Where a Reader or Writer does its I/O in this process; what a fork and the interpreter's exit mean for that.

* In a monkey-patched process, in the hub of the calling thread: everything is cooperative there.  In a Reader's handler
  thread it is the Reader's hub: nobody turns that thread's own between two messages.
* Otherwise in one native thread of the library's own with its own hub, shared by all Readers and Writers of the
  process: a handler that sleeps or waits in C cannot hold up a heartbeat (HB-1); one that keeps the interpreter's lock
  does.

The library never monkey-patches.  After a fork the child gets a fresh loop.
"""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gevent._hub_local import get_hub_if_exists

from gnsq_lite.blocking_calls import after_fork
from gnsq_lite.errors import NSQError
from gnsq_lite.net.forks import look_for_fork, on_fork
from gnsq_lite.net.loop import Loop, has_loop, loop_here
from gnsq_lite.net.nested import WHY, Holding, holding, holds, is_nested
from gnsq_lite.net.os_threads import (
    IN_HUB,
    interpreter_exit,
    is_patched,
    native_held_lock,
    native_ident,
    native_lock,
    park,
    start_native_thread_soon,
)

log = logging.getLogger("gnsq_lite.net")

#: Seconds that the I/O thread has to begin, before another is started in its place.
_TO_BEGIN = 1.0

_own: Loop | None = None
_own_lock = native_lock()
_after_fork: weakref.WeakSet[Any] = weakref.WeakSet()
_before_exit: list[Callable[[Loop | None], None]] = []
#: The Reader's loop, by the ident of each handler thread.
_handles_for: dict[int, Loop] = {}


@holds
def io_loop() -> Loop:
    """Return the loop in which a Reader or Writer made here does its I/O (see the module's text).

    Raises ClosedError where the interpreter is too far gone to start a thread, NSQError where the system gives none,
    TimeoutError in the middle of a start.
    """
    look_for_fork()
    if is_patched():
        return _handles_for.get(native_ident()) or loop_here()
    global _own
    if _own is not None:
        return _own
    if holding and is_nested():
        raise TimeoutError(WHY)
    with Holding(), _own_lock:
        if _own is None:
            if sys.is_finalizing():  # a thread that is started now never runs
                raise interpreter_exit.error()
            _own = _start_own()
        return _own


def _start_own() -> Loop:
    """Start the thread, and another as long as none has begun: what is aimed at one may hit before its first line."""
    made: list[Loop] = []
    refused: list[RuntimeError] = []
    ready = native_held_lock()

    def run() -> None:
        loop = loop_here(keep_alive=True)
        while True:  # for good
            try:
                if not made:
                    made.append(loop)
                if made[0] is not loop:  # so late that another came in its place
                    loop.hub.destroy(destroy_loop=True)
                    return
                if ready.locked():
                    ready.release()
                loop.hub.switch()
            except BaseException:  # raised in this thread from outside; all Readers and Writers need it
                with suppress(Exception):
                    log.exception("the I/O thread goes on")

    def refuse(error: RuntimeError) -> None:
        refused.append(error)
        ready.release()

    while not made:
        try:
            start_native_thread_soon("gnsq_lite-io", run, refuse)
        except RuntimeError as error:
            refused.append(error)
        else:
            ready.acquire(True, _TO_BEGIN)
        if refused and not made:
            raise NSQError(f"the I/O thread cannot be started: {refused[0]}") from refused[0]
    return made[0]


def enter_thread(loop: Loop) -> None:
    """Have what is first used in this native thread, which runs the handlers of *loop*'s Reader, do its I/O there."""
    _handles_for[native_ident()] = loop


def leave_thread() -> None:
    """Give back the descriptors of the hub that a wait of gevent's made in this native thread, which is about to end.

    A hub with a Loop stays: another thread may be about to wake it.
    """
    _handles_for.pop(native_ident(), None)
    hub = get_hub_if_exists()
    if hub is not None and not has_loop(hub):
        hub.destroy(destroy_loop=True)


def loop_of_handlers() -> Loop | None:
    """Return the Reader's loop where the caller is a native thread that runs its handlers, else None."""
    return _handles_for.get(native_ident())


def forget_on_fork(thing: Any) -> None:
    """Call ``thing.after_fork()`` in a forked child; held weakly."""
    _after_fork.add(thing)


def before_exit(act: Callable[[Loop | None], None]) -> None:
    """Have *act* called at the interpreter's exit, with the library's own loop if there is one, which still runs."""
    _before_exit.append(act)


def _in_child() -> None:
    global _own, _own_lock
    if _own is not None:
        _own.gone = True
    _own, _own_lock = None, native_lock()
    interpreter_exit.forget()
    _handles_for.clear()
    for thing in list(_after_fork):
        thing.after_fork()


on_fork(after_fork)
on_fork(_in_child)


def act_before_exit() -> None:
    """Do what :func:`before_exit` was given."""
    look_for_fork()
    for act in _before_exit:
        act(_own)


def _at_exit() -> None:
    """Let all leave, then stop the thread."""
    try:
        act_before_exit()
    finally:
        _stop(_own)


def _stop(loop: Loop | None) -> None:
    if loop is None:
        return
    park((loop.call_soon, IN_HUB))
    loop.stopped = True
    interpreter_exit.begin()


atexit.register(_at_exit)
