"""Makes hubs, native threads and locks, even in a monkey-patched process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from gevent import config, get_hub, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Hub
from gevent.monkey import saved  # type: ignore[attr-defined]

from gnsq_lite.errors import FreeThreadingError, NSQError, OptionError

#: Returns the unpatched object, given the name of its module and its own name.
native: Callable[[str, str], Any] = monkey.get_original
_start_native: Callable[..., int] = native("_thread", "start_new_thread")
native_lock: Callable[[], Any] = native("_thread", "allocate_lock")
native_rlock: Callable[[], Any] = native("_thread", "RLock")
native_sleep: Callable[[float], None] = native("time", "sleep")
native_ident: Callable[[], int] = native("_thread", "get_ident")
_native_close: Callable[[int], None] = native("os", "close")

#: Descriptors that a hub needs: one for epoll, up to two for wake-ups, and one in reserve.
_HUB_DESCRIPTORS = 4


def is_patched() -> bool:
    """Return whether gevent has patched both :mod:`socket` and :mod:`threading`."""
    return bool(monkey.is_module_patched("socket") and monkey.is_module_patched("threading"))


def has_patched_threads() -> bool:
    """Return whether gevent has patched :mod:`threading`."""
    return bool(monkey.is_module_patched("threading"))


def check_process() -> None:
    """Raise OptionError if the process cannot run the I/O loop: it is patched by eventlet, or gevent uses libuv."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("socket", "select", "thread", "time"))):
        why = "replaces what gevent and this library wait with; do not patch with eventlet, or use another process"
        raise OptionError("eventlet.monkey_patch", "called", why)
    hub = get_hub_if_exists()
    loop = type(hub.loop) if hub is not None else config.loop
    if "libuv" in loop.__module__:
        why = "is not supported; unset GEVENT_LOOP, or set it to libev-cext or libev-cffi"
        raise OptionError("GEVENT_LOOP", "libuv-cffi", why)


#: The idents of the threads that run the event loop of async handlers, in which no call may block.
event_loop_threads: set[int] = set()


def in_event_loop() -> bool:
    """Return whether the calling thread runs the event loop of async handlers."""
    return bool(event_loop_threads) and native_ident() in event_loop_threads


def is_plain_thread() -> bool:
    """Return whether the caller may block: the thread has no hub or event loop, and gevent has patched no module."""
    return not (saved or get_hub_if_exists() is not None or (event_loop_threads and in_event_loop()))


#: The first versions of Python and greenlet with which the library runs without the GIL.
_PYTHON, _GREENLET = (3, 14, 5), (3, 5, 6)


def check_versions(has_gil: bool, python: tuple[int, ...], greenlet: str) -> None:
    """Raise FreeThreadingError if the GIL is disabled and *python* or *greenlet* is too old."""
    found = tuple(int(number) for number in re.findall(r"\d+", greenlet)[:3])
    if not has_gil and (python < _PYTHON or found < _GREENLET):
        needed, here = (".".join(map(str, each)) for each in (_PYTHON, python))
        raise FreeThreadingError(
            f"without the GIL, gnsq_lite needs Python {needed} and greenlet {'.'.join(map(str, _GREENLET))} or newer; "
            f"this is Python {here} with greenlet {greenlet}.  Remove PYTHON_GIL=0 to enable the GIL"
        )


def has_gil() -> bool:
    """Return whether this process has the GIL."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class Count:
    """A counter that any thread may increment.  Without the GIL ``+=`` loses counts, so each thread has its own."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, count: int = 1) -> None:
        """Add *count*."""
        ident = native_ident()
        self._counts[ident] = self._counts.get(ident, 0) + count

    def value(self) -> int:
        """Return the sum over all threads."""
        return sum(self._counts.copy().values())


class WeakGroup:
    """Objects that are referred to weakly.  Any thread may add an object or list the objects, also without the GIL."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}

    def add(self, member: Any) -> None:
        """Add *member* until the program drops it."""
        key, refs = id(member), self._refs

        def drop(ref: weakref.ref[Any]) -> None:
            if refs.get(key) is ref:
                refs.pop(key, None)

        refs[key] = weakref.ref(member, drop)

    def members(self) -> list[Any]:
        """Return the objects in the order in which they were added."""
        return [member for ref in self._refs.copy().values() if (member := ref()) is not None]

    def clear(self) -> None:
        """Remove all objects."""
        self._refs.clear()


def make_hub() -> Any:
    """Return the hub of the calling thread.  Make a missing hub.

    Raises NSQError if no hub exists and the process has too few free descriptors for a hub.  libev would not raise: a
    loop without a descriptor for wake-ups uses all CPU time, and calls of other threads never run.
    """
    if get_hub_if_exists() is None:
        opened: list[int] = []
        try:
            for _ in range(_HUB_DESCRIPTORS):
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise NSQError(f"the I/O loop cannot be started: {error.strerror}") from error
        finally:
            for each in opened:
                _native_close(each)
    return get_hub()


def native_held_lock() -> Any:
    """Return an acquired native lock.  The next ``acquire()`` blocks until another thread releases the lock."""
    lock = native_lock()
    lock.acquire()
    return lock


#: Idents of the running threads that :func:`start_native_thread` started.
started_threads: set[int] = set()
#: Maximum seconds to wait at exit until the hubs of these threads sleep.
_TO_PARK = 1.0
#: Seconds for which such a hub sleeps, while the process exits.
_PARKED = 10.0


def start_native_thread(name: str, run: Callable[[], None]) -> None:
    """Call *run* in a new native daemon thread.

    If the thread runs greenlets when Python exits, an atexit function puts the thread's hub to sleep.
    """

    def run_registered() -> None:
        ident = native_ident()
        started_threads.add(ident)
        try:
            run()
        finally:
            started_threads.discard(ident)

    if has_patched_threads():
        _start_native(run_registered, ())
    else:
        threading.Thread(target=run_registered, name=name, daemon=True).start()


def start_hub_thread(name: str, run: Callable[[], None]) -> None:
    """Call *run*, which may block, in a new native daemon thread.

    If gevent has patched threads, the thread makes a new hub.  Raises NSQError if a hub cannot be made.
    """
    if not has_patched_threads():
        start_native_thread(name, run)
        return
    # gevent imports its loop module when it makes the first hub of a process.  The patched import lock needs a hub.
    # Therefore two threads that make the first hub at the same time would deadlock.
    make_hub()
    has_begun, errors = native_held_lock(), list[NSQError]()

    def run_beside_hub() -> None:
        try:
            hub = make_hub()
        except NSQError as error:
            errors.append(error)
            return
        finally:
            has_begun.release()
        try:
            run()
        finally:
            hub.destroy(destroy_loop=True)

    start_native_thread(name, run_beside_hub)
    has_begun.acquire()
    if errors:
        raise errors[0]


@atexit.register
def _park_hubs() -> None:
    """Put the hubs of the library's threads to sleep if they run greenlets.

    CPython before 3.14 unwinds the stack of a thread that waits for the GIL while Python exits.  greenlet has moved
    parts of that stack, and the process crashes.
    """
    ends, parking = time.monotonic() + _TO_PARK, list[Any]()
    # isinstance() would read __class__ of every object, which runs code of lazy objects: Django's raise LookupError.
    hubs: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), Hub)] if started_threads else []
    for hub in hubs:
        if hub.thread_ident in started_threads and _has_switched(hub):
            parked = native_held_lock()
            with contextlib.suppress(AttributeError, ValueError):  # the thread has just destroyed the hub
                hub.loop.run_callback_threadsafe(partial(_sleep, parked))
                parking.append(parked)
    for parked in parking:
        parked.acquire(True, max(0.0, ends - time.monotonic()))


def _has_switched(greenlet: Any) -> bool:
    """Return whether the thread of *greenlet* runs another greenlet than its main greenlet."""
    while greenlet.parent is not None:
        greenlet = greenlet.parent
    return greenlet.gr_frame is not None  # only a suspended greenlet has a frame


def _sleep(parked: Any) -> None:
    parked.release()
    native_sleep(_PARKED)
