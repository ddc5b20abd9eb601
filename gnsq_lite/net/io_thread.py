"""Where a Reader or Writer does its I/O in this process; what a fork and the interpreter's exit mean for that.

* In a monkey-patched process, in the hub of the calling thread: everything is cooperative there.  In a Reader's handler
  thread it is the Reader's hub: that thread's own hub does not run between two messages.
* Otherwise in one native thread of the library's own with its own hub, shared by all Readers and Writers of the
  process: a handler that sleeps or waits in C cannot hold up a heartbeat (HB-1); one that keeps the interpreter's lock
  does.

The library never monkey-patches.

**Forks.**  The parent's threads do not exist in a forked child, so nothing there may wait for one of them: the child
gets a fresh loop.  Python's hook detects the child, or, where a fork in C ran no hook (uWSGI forks its workers in C),
the process id: each public call compares it before it uses what the parent has made.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from os import getpid
from typing import Any, TypeVar

from gnsq_lite.blocking_calls import after_fork
from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.loop import Loop, current_greenlet, destroy_unused_hub, loop_here
from gnsq_lite.net.os_threads import (
    is_patched,
    native_held_lock,
    native_ident,
    native_lock,
    native_sleep,
    start_native_thread,
)

T = TypeVar("T")

log = logging.getLogger("gnsq_lite.net")

#: Seconds that the I/O thread and the handler threads have to end.
_TO_END = 1.0
#: Seconds between two looks at the handler threads that are about to end.
_NAP = 0.002

_own: Loop | None = None
_own_lock = native_lock()
#: Held until the I/O thread has ended.
_ended: Any = native_held_lock()
_is_exiting = False
#: The Reader's loop, by the ident of each handler thread.
_handles_for: dict[int, Loop] = {}


def io_loop() -> Loop:
    """Return the loop in which a Reader or Writer made here does its I/O (see the module's text).

    Raises NSQError where the system gives no thread, ClosedError once Python exits.
    """
    look_for_fork()
    if is_patched():
        return _handles_for.get(native_ident()) or loop_here()
    global _own
    with _own_lock:
        if _is_exiting:  # a thread that is started now never runs
            raise ClosedError("the interpreter is exiting: no I/O thread can be started")
        if _own is None:
            _own = _start_own()
        return _own


def _start_own() -> Loop:
    made: list[Loop] = []
    ready, ended = native_held_lock(), _ended

    def run() -> None:
        try:
            made.append(loop_here(keep_alive=True))
        finally:
            ready.release()
        made[0].run()
        ended.release()

    try:
        start_native_thread("gnsq_lite-io", run)
    except RuntimeError as error:
        raise NSQError(f"the I/O thread cannot be started: {error}") from error
    ready.acquire()
    if not made:
        raise NSQError("the I/O thread cannot be started: see its traceback on standard error")
    return made[0]


def stop_io_thread() -> None:
    """Stop the library's I/O thread, if there is one, and wait until it has ended.  For good: Python exits.

    In a monkey-patched process wait for the handler threads that are about to end, too: a thread that waits for the GIL
    in its hub while Python ends crashes the process.
    """
    global _is_exiting
    _is_exiting = True
    if _own is not None:
        _own.stop()
        _ended.acquire(True, _TO_END)
    naps = _TO_END / _NAP if is_patched() else 0
    while _handles_for and naps > 0:
        native_sleep(_NAP)
        naps -= 1


def enter_thread(loop: Loop) -> None:
    """Do the I/O of Writers first used in this native thread in *loop*: it runs the handlers of that loop's Reader."""
    _handles_for[native_ident()] = loop


def leave_thread() -> None:
    """Give back the descriptors of the hub that a wait of gevent's made in this native thread, which is about to end.

    A hub with a Loop stays: another thread may be about to wake it.
    """
    destroy_unused_hub()
    _handles_for.pop(native_ident(), None)  # from now on no exit of Python waits for this thread


def loop_of_handlers() -> Loop | None:
    """Return the Reader's loop where the caller is a native thread that runs its handlers, else None."""
    return _handles_for.get(native_ident())


def _in_child() -> None:
    global _own, _own_lock, _ended
    if _own is not None:
        _own.gone = True
    _own, _own_lock, _ended = None, native_lock(), native_held_lock()
    _handles_for.clear()


# -- forks

_acts: list[Callable[[], None]] = []
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
#: The process whose state is fresh.
_pid = getpid()
#: The greenlet in which this process was forked; None: it is no forked child.
_forker: Any = None


def on_fork(act: Callable[[], None]) -> None:
    """Call *act* in each forked child before the library is used there; in order of registration."""
    _acts.append(act)


def forget_on_fork(owner: Any) -> None:
    """Call ``owner.after_fork()`` in a forked child, after the functions of :func:`on_fork`; held weakly."""
    _owners.add(owner)


def look_for_fork() -> None:
    """Reset the library if this is a forked child in which that was not done.  Costs one system call."""
    if getpid() != _pid:
        _reset()


def end_child(call: Callable[..., T], *args: Any) -> T:
    """Return ``call(*args)``; if *call* forks, end the child with status 0 when it returns there or raises.

    For handlers: what a child would go on with after them, in threads and greenlets, is the parent's.
    """
    try:
        return call(*args)
    finally:
        if _forker is current_greenlet():
            os._exit(0)


def _reset() -> None:
    global _pid, _forker
    _pid, _forker = getpid(), current_greenlet()  # first: what is called below may look for a fork itself
    for act in _acts:
        act()
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_reset)
on_fork(after_fork)
on_fork(_in_child)
