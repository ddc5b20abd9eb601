"""Detects a forked child: by Python's hook, or by the process id where a fork in C ran no hook.

uWSGI, for one, forks its workers in C.  The parent's threads do not exist in the child, and every object made in the
parent must learn that before it waits for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import getpid
from typing import Any, TypeVar

from greenlet import getcurrent

from gnsq_lite.net.os_threads import native_ident, native_sleep

T = TypeVar("T")

#: Seconds between two checks whether another thread of the child is done.
_LOOK = 0.001

_acts: list[Callable[[], None]] = []
#: The process whose state is up to date.
_pid = getpid()
#: Which thread takes over in which process.  A lock will not do: a thread of the parent could hold it for ever.
_claims: dict[int, int] = {}
_begun: set[int] = set()
#: The greenlet in which this process was forked; None: it is no forked child.
_forker: Any = None


def on_fork(act: Callable[[], None]) -> None:
    """Call *act* in each forked child before the library is used there; in order of registration."""
    _acts.append(act)


def look_for_fork() -> None:
    """Run the registered actions if this is a forked child that has not run them.  Costs one system call."""
    if getpid() != _pid:
        _take_over()


def end_child(call: Callable[..., T], *args: Any) -> T:
    """Return ``call(*args)``; if *call* forks, end the child with status 0 when it returns there or raises.

    For handlers: what a child would go on with after them, in threads and greenlets, is the parent's.
    """
    try:
        return call(*args)
    finally:
        if _forker is getcurrent():
            os._exit(0)


def _take_over() -> None:
    global _pid, _forker
    pid, me = getpid(), native_ident()
    claimant = _claims.setdefault(pid, me)
    if claimant != me:
        while _pid != pid:
            native_sleep(_LOOK)
    elif pid not in _begun:
        _forker = getcurrent()
        _begun.add(pid)  # what is called below may look for a fork itself
        try:
            for act in _acts:
                act()
        finally:
            _pid = pid
            _claims.clear()
            _begun.clear()


os.register_at_fork(after_in_child=_take_over)
