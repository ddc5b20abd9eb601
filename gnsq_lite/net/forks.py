"""Detects a forked child: by Python's hook, or by the process id where a fork in C ran no hook.

uWSGI, for one, forks its workers in C.  The parent's threads do not exist in the child, so nothing there may wait for
one of them.  Each public call compares the process id before it uses what the parent has made.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from os import getpid
from typing import Any, TypeVar

from gnsq_lite.net.loop import current_greenlet
from gnsq_lite.net.os_threads import native_rlock

T = TypeVar("T")

_acts: list[Callable[[], None]] = []
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
#: The process whose state is fresh.
_pid = getpid()
#: A lock for each process: a thread of the parent may have held the parent's at the fork.
_locks: dict[int, Any] = {}
_is_resetting = False
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
    global _pid, _forker, _is_resetting
    pid = getpid()
    with _locks.setdefault(pid, native_rlock()):  # several threads of the child may come here at once
        if pid == _pid or _is_resetting:  # what is called below may look for a fork itself
            return
        _forker, _is_resetting = current_greenlet(), True
        try:
            for act in _acts:
                act()
            for owner in list(_owners):
                owner.after_fork()
        finally:
            _is_resetting, _pid = False, pid


os.register_at_fork(after_in_child=_reset)
