"""Finding out that this process is a forked child: by Python's hook, or by its id where a fork in C ran no hook.

uWSGI forks its workers so, and so does whatever else calls fork() from C.  Nothing of the parent's threads is left in
the child, and all that was made in the parent has to know it before it waits for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import getpid

from gnsq_lite.net.os_threads import native_ident, native_sleep

#: Seconds between two looks whether another thread of the child is done.
_LOOK = 0.001

_acts: list[Callable[[], None]] = []
#: The process for which all is in order.
_pid = getpid()
#: Which thread takes over in which process; a lock could be held by a thread of the parent's, for ever.
_claims: dict[int, int] = {}
_begun: set[int] = set()


def on_fork(act: Callable[[], None]) -> None:
    """Have *act* called in each forked child before anything of the library's is used there; in the order given."""
    _acts.append(act)


def look_for_fork() -> None:
    """Take over what a forked child must, if this is one and nobody has yet.  Cheap: a system call."""
    if getpid() != _pid:
        _take_over()


def _take_over() -> None:
    global _pid
    pid, me = getpid(), native_ident()
    claimant = _claims.setdefault(pid, me)
    if claimant != me:
        while _pid != pid:
            native_sleep(_LOOK)
    elif pid not in _begun:
        _begun.add(pid)  # what is called below may look for a fork itself
        try:
            for act in _acts:
                act()
        finally:
            _pid = pid
            _claims.clear()
            _begun.clear()


os.register_at_fork(after_in_child=_take_over)
