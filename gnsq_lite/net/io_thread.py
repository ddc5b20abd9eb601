"""Chooses the loop of a Reader or Writer, and handles forks and the exit of Python.

* In a monkey-patched process the loop is the hub of the calling thread.  In a handler thread of a Reader it is the
  Reader's hub, because the hub of the handler thread does not run between two messages.
* Otherwise the loop is the hub of the library's I/O thread, which all Readers and Writers of the process share.  A
  handler that sleeps or blocks in C does not delay heartbeats (HB-1), but a handler that holds the GIL does.

The library never monkey-patches.

**Forks.**  The parent's threads do not exist in a forked child.  The child gets a new loop, and must not wait for those
threads.  ``os.register_at_fork`` detects a fork in Python.  A fork in C, such as uWSGI's, calls no Python function.
Therefore each public call also looks at a page that the kernel clears in a child, or else compares the process id.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
from collections.abc import Callable
from os import getpid
from typing import Any

from gnsq_lite.blocking_calls import after_fork
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.loop import Loop, all_loops, current_greenlet, destroy_unused_hub, loop_here
from gnsq_lite.net.os_threads import (
    WeakGroup,
    is_patched,
    native_held_lock,
    native_ident,
    native_rlock,
    native_sleep,
    start_native_thread,
    started_threads,
)

log = logging.getLogger("gnsq_lite.net")

#: Seconds between two checks whether handler threads still run.
_CHECK_EVERY = 0.002

_own: Loop | None = None
_own_lock = native_rlock()
#: Lock that the I/O thread releases when it ends.
_ended: Any = native_held_lock()
_is_exiting = False
#: Maps the ident of each handler thread to its Reader's loop.
_handles_for: dict[int, Loop] = {}


def io_loop() -> Loop:
    """Return the loop for a Reader or Writer that the caller makes (see the module docstring).

    Raises NSQError if the system has no thread or no descriptors for the loop, and ClosedError while Python exits.
    """
    reset_after_fork()
    if is_patched():
        return _handles_for.get(native_ident()) or loop_here()
    global _own
    with _own_lock:
        if _is_exiting:  # a new thread would never run
            raise ClosedError("the interpreter is exiting: no I/O thread can be started")
        if _own is None:
            started = _start_own()
            if _own is None:
                _own = started
            else:  # meanwhile the garbage collector has called this function in this thread
                started.stop()
        return _own


def _start_own() -> Loop:
    made: list[Loop] = []
    errors: list[NSQError] = []
    ready, ended = native_held_lock(), _ended

    def run() -> None:
        try:
            made.append(loop_here(keep_alive=True))
        except NSQError as error:
            errors.append(error)
            return
        finally:
            ready.release()
        made[0].run()
        ended.release()

    try:
        start_native_thread("gnsq_lite-io", run)
    except RuntimeError as error:
        raise NSQError(f"the I/O thread cannot be started: {error}") from error
    ready.acquire()
    if errors:
        raise errors[0]
    if not made:
        raise NSQError("the I/O thread cannot be started: see its traceback on standard error")
    return made[0]


def stop_io_thread(seconds: float) -> None:
    """Stop the I/O thread, if any, and wait at most *seconds* for its end.  Call this function only when Python exits.

    In a monkey-patched process, wait for the handler threads instead, because a thread that waits for the GIL in its
    hub while Python exits crashes the process.
    """
    global _is_exiting
    _is_exiting = True
    if _own is not None:
        _own.stop()
        _ended.acquire(True, seconds)
    ends = SYSTEM_CLOCK.now() + seconds
    while is_patched() and _handles_for and SYSTEM_CLOCK.now() < ends:
        native_sleep(_CHECK_EVERY)


def enter_thread(loop: Loop) -> None:
    """Register the calling native thread as a handler thread of a Reader in *loop*.

    Readers and Writers that handlers make in this thread use *loop* too.
    """
    _handles_for[native_ident()] = loop


def leave_thread() -> None:
    """Unregister the calling native thread, which is about to end.  Destroy its hub, unless the hub has a Loop."""
    destroy_unused_hub()
    _handles_for.pop(native_ident(), None)  # from now on stop_io_thread() does not wait for this thread


def loop_of_handlers() -> Loop | None:
    """Return the loop of the Reader for which the calling native thread runs handlers, or None."""
    return _handles_for.get(native_ident())


def _in_child() -> None:
    global _own, _own_lock, _ended
    if _own is not None:
        _own.gone = True
    for loop in all_loops():
        loop.cores.clear()
    _own, _own_lock, _ended = None, native_rlock(), native_held_lock()
    _handles_for.clear()
    started_threads.clear()


# -- forks

_acts: list[Callable[[], None]] = []
_owners = WeakGroup()
#: Id of the process to which the state of this module belongs.
_pid = getpid()
#: A lock for each process id, because a thread of the parent may hold the parent's lock during the fork.
_locks: dict[int, Any] = {}
_is_resetting = False
#: In a forked child, the greenlet that called fork(); otherwise None.
_forker: Any = None


def on_fork(act: Callable[[], None]) -> None:
    """Call *act* in each forked child, before the child uses the library, in the order of registration."""
    _acts.append(act)


def forget_on_fork(owner: Any) -> None:
    """Call ``owner.after_fork()`` in each forked child, after all :func:`on_fork` functions.

    Only a weak reference to *owner* is kept.
    """
    _owners.add(owner)


class _Pid:
    """Replaces the page of :func:`_page` where the system has no MADV_WIPEONFORK."""

    def __getitem__(self, at: int) -> int:
        return int(getpid() == _pid)

    def __setitem__(self, at: int, value: int) -> None:
        pass


def _page() -> Any:
    """Return a page whose first byte is 1 here and 0 in a forked child (Linux 4.14; madvise(2), MADV_WIPEONFORK)."""
    try:
        page: Any = mmap.mmap(-1, 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(18)  # MADV_WIPEONFORK, which the module mmap does not name
        page[0] = 1
    except (AttributeError, OSError, ValueError):
        page = _Pid()
    return page if sys.platform == "linux" else _Pid()


#: ``own_process[0]`` is 0 in a forked child until the library is reset, else 1.  A look costs no system call.
own_process = _page()


def reset_after_fork() -> None:
    """Reset the library in a forked child, once."""
    if not own_process[0]:
        _reset()


def exit_forked_handler() -> None:
    """Exit with status 0 if the current greenlet or thread called fork() in a handler, and this is the child.

    The child must not continue the parent's greenlets.  A fork closes the pools.  Then their workers call this and end.
    """
    if _forker is current_greenlet():
        os._exit(0)


def _reset() -> None:
    global _pid, _forker, _is_resetting
    pid = getpid()
    with _locks.setdefault(pid, native_rlock()):  # after a fork in C, several threads of the child may call this
        if pid == _pid or _is_resetting:  # the functions called below may call reset_after_fork()
            return
        _forker, _is_resetting = current_greenlet(), True
        try:
            for act in _acts:
                act()
            for owner in _owners.members():
                owner.after_fork()
        finally:
            _is_resetting, _pid, own_process[0] = False, pid, 1


os.register_at_fork(after_in_child=_reset)
on_fork(after_fork)
on_fork(_in_child)
