"""What callers' threads publish with: their locks, and the way of a plain publish, in C where that was built.

:mod:`gnsq_lite.accelerator` says which of the two runs, and how to choose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gnsq_lite.accelerator import WANTED, do_without
from gnsq_lite.net.forks import on_fork
from gnsq_lite.net.os_threads import native_held_lock, native_lock

#: What :func:`carry` returns: nothing was done; the publish has its outcome; it was begun, and the caller goes on.
NOT_BEGUN, DONE, BEGUN = range(3)


def pure_carry(connection: Any, publication: Any, command: bytes, /) -> int:
    """Leave all of it to :class:`gnsq_lite.publish.shared_connection.SharedConnection`."""
    return NOT_BEGUN


def pure_know(connection: type, publication: type, taken: type, gathering: type, holding: set[int], /) -> None:
    """Do nothing: C wants to know where the fields of these classes are, and the threads that hold something."""


carry, know, is_accelerated = pure_carry, pure_know, False
make_lock: Callable[[], Any] = native_lock
held_lock: Callable[[], Any] = native_held_lock
if WANTED != "python" and sys.platform == "linux":
    try:
        from gnsq_lite._shared import Lock, forget
        from gnsq_lite._shared import carry as _carry
        from gnsq_lite._shared import know as _know
    except ImportError as missing:
        do_without(missing)
    else:
        carry, know, is_accelerated = _carry, _know, True
        make_lock = Lock
        on_fork(forget)

        def held_lock() -> Any:
            """Return a lock of the operating system's threads that is held, and that C can look at."""
            return Lock(True)
