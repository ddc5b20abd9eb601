"""The operating system's threads and locks, whatever is monkey-patched; and their end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from gevent import get_hub, monkey
from gevent.hub import Hub

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ClosedError

_start_native: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")
_native_lock: Callable[[], Any] = monkey.get_original("_thread", "allocate_lock")
_native_rlock: Callable[[], Any] = monkey.get_original("_thread", "RLock")
native_sleep: Callable[[float], None] = monkey.get_original("time", "sleep")
native_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")


def is_patched() -> bool:
    """Whether sockets and threads of this process are gevent's."""
    return bool(monkey.is_module_patched("socket") and monkey.is_module_patched("threading"))


#: Whether what a signal handler raises may leave a lock held for good: on Python 3.14 ``with`` looks for signals after
#: an ``__enter__`` in C and before its block (python/cpython#148874).  3.13 does not, and 3.15 not any more.
LEAVES_LOCKS_HELD = sys.version_info[:2] == (3, 14)

_WAITING = (True,)


def enter(lock: Any) -> bool:
    """Take *lock*: its ``__enter__`` where :data:`LEAVES_LOCKS_HELD`, as after one in Python no signal is looked for.

    The ``__exit__`` stays in C: one in Python might be interrupted before it has begun.
    """
    taken: list[bool] = []
    try:
        taken.extend(map(lock.acquire, _WAITING))  # so that an interruption leaves in the list that it is held
    except BaseException:
        if taken:
            lock.release()
        raise
    return True


class _RLock(_native_rlock):  # type: ignore[misc, valid-type]
    """The interpreter's lock that its holder may take again, for where :data:`LEAVES_LOCKS_HELD`."""

    __slots__ = ()

    __enter__ = enter


class _Lock:
    """The interpreter's lock, which cannot be derived from, for where :data:`LEAVES_LOCKS_HELD`."""

    __slots__ = ("__exit__", "acquire", "locked", "release")

    __enter__ = enter

    def __init__(self, lock: Any) -> None:
        self.acquire, self.release, self.locked = lock.acquire, lock.release, lock.locked
        self.__exit__ = lock.__exit__  # "with" finds the slot, and calls what is in it


def native_lock() -> Any:
    """Return a lock of the operating system's threads, monkey-patched or not."""
    return _Lock(_native_lock()) if LEAVES_LOCKS_HELD else _native_lock()


def native_rlock() -> Any:
    """Return such a lock that its holder may take again."""
    return _RLock() if LEAVES_LOCKS_HELD else _native_rlock()


def native_held_lock() -> Any:
    """Return such a lock that is held: whoever waits for it waits until it is released."""
    lock = _native_lock()
    lock.acquire()
    return lock


def start_native_thread(name: str, run: Callable[[], None]) -> None:
    """Run *run* in a daemonic thread of the operating system, monkey-patched or not."""
    if monkey.is_module_patched("threading"):
        _start_native(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()


def start_native_thread_soon(name: str, run: Callable[[], None], refused: Callable[[RuntimeError], None]) -> None:
    """Like :func:`start_native_thread`, but nobody waits until it has begun, which may be for ever.

    A thread in which another one sets an exception may end before its ``start()`` hears of it.  *refused* is called, in
    some thread, where the system gives no thread; that may be raised here, too.
    """
    if monkey.is_module_patched("threading"):
        _start_native(run, ())
        return
    thread = threading.Thread(target=run, name=name, daemon=True)

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            refused(error)

    _start_native(start, ())


def current_frames() -> dict[int, FrameType]:
    """Return the frame of each thread of the interpreter, by ident.

    Python 3.11 holds a lock meanwhile that each thread takes as it begins and ends.  A garbage collection in the
    middle, one of whose finalizers lets another thread run, would hang the process for good (python/cpython#106883).
    From 3.12 on none comes there.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    try:
        gc.disable()
        return sys._current_frames()
    finally:
        gc.enable()


def living_threads() -> set[int]:
    """Return the idents of all threads of the interpreter."""
    return set(current_frames())


#: A lock for each thread of :func:`start_hub_thread` that has no hub yet.
_beginning: set[Any] = set()


def start_hub_thread(name: str, run: Callable[[], None]) -> None:
    """Like :func:`start_native_thread`, for what waits: monkey-patched it does so in a hub of its own thread.

    The thread is parked when the interpreter exits.
    """
    if not monkey.is_module_patched("threading"):
        start_native_thread(name, run)
        return
    # The first hub of a process has gevent import its loop, under a lock that is gevent's own by now and wants a hub:
    # two threads that made the first one at once would wait for each other for good.
    get_hub()
    begun = native_held_lock()
    _beginning.add(begun)

    def run_beside_hub() -> None:
        hub = get_hub()
        _beginning.discard(begun)
        begun.release()
        try:
            run()
        finally:
            hub.destroy(destroy_loop=True)

    start_native_thread(name, run_beside_hub)


#: Seconds for a thread to be parked: one that waits in its hub, and one that does not.
IN_HUB, _ELSEWHERE = 1.0, 0.05
#: Seconds until a parked thread goes on: the process is gone by then, or waits for what that thread holds.
_PARKED = 10.0
#: The idents of those that are parked.
_asleep: set[int] = set()


def park(*ways: tuple[Callable[[Callable[[], None]], object], float]) -> None:
    """Have threads sleep, without the GIL, until the process is gone; for ten seconds at most.

    Each is given by what runs a function in its hub, and by the seconds that are waited for it at most.

    A daemonic thread that asks for the GIL of an interpreter that has ended is ended where it stands.  Where that is
    within a greenlet, such as a hub, the process crashes.
    """
    asked = []
    for call_soon, patience in ways:
        parked = native_held_lock()
        with contextlib.suppress(AttributeError, ValueError):  # its thread has just destroyed the hub
            call_soon(partial(_sleep, parked))
            asked.append((parked, patience))
    began = SYSTEM_CLOCK.now()
    for parked, patience in asked:
        parked.acquire(True, max(0.0, began + patience - SYSTEM_CLOCK.now()))


def _sleep(parked: Any) -> None:
    _asleep.add(native_ident())
    parked.release()
    night = native_held_lock()
    night.acquire(True, _PARKED)


@atexit.register
def _park_hub_threads() -> None:
    """Park all other threads with a hub: the library's, and those of users and their handlers, who wait in gevent."""
    for begun in _beginning.copy():
        begun.acquire(True, IN_HUB)
    frames = {ident: frame for ident, frame in current_frames().items() if ident not in _asleep}
    del frames[native_ident()]
    if not frames:
        return
    hubs = [thing for thing in gc.get_objects() if issubclass(type(thing), Hub)]  # no list of them is kept anywhere
    living = [hub for hub in hubs if hub.thread_ident in frames and hub.loop is not None]
    park(
        *(
            (hub.loop.run_callback_threadsafe, IN_HUB if _is_hub(frames[hub.thread_ident]) else _ELSEWHERE)
            for hub in living
        )
    )


def _is_hub(frame: FrameType) -> bool:
    """Whether *frame*, where a thread is, was called by its hub."""
    below: FrameType | None = frame
    while below is not None:
        frame, below = below, below.f_back
    return frame.f_code is Hub.run.__code__


class Exit:
    """The end of the interpreter, from when the library's own thread is stopped: what waits for it waits in vain."""

    #: Seconds until a daemonic thread hears of it.  The process is gone by then, and nothing is said; but where the
    #: exiting thread joins that one, both would wait for good.
    GRACE = 3.0

    def __init__(self) -> None:
        #: The exiting thread, once the library's is stopped.
        self.ident: int | None = None
        #: The waits of all threads, each with a ``wake()``.  Who begins one adds it and then looks at *ident*.
        self.waits: set[Any] = set()

    def forget(self) -> None:
        """In a forked child, whose parent's exit and waits are none of its own."""
        self.ident = None
        self.waits = set()

    def begin(self) -> None:
        """End all waits; in the exiting thread."""
        self.ident = native_ident()
        for wait in self.waits.copy():
            wait.wake()

    def error(self) -> ClosedError:
        """Return what a wait raises; in another than the exiting thread after a while."""
        if self.ident not in (None, native_ident()):
            nap = native_held_lock()
            nap.acquire(True, self.GRACE)
        return ClosedError("the interpreter is exiting: its I/O thread has stopped, so no outcome can arrive")


#: This interpreter's.
interpreter_exit = Exit()
