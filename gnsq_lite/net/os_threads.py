"""The operating system's threads and locks, whatever is monkey-patched; and their end."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from gevent import get_hub, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.monkey import saved  # type: ignore[attr-defined]

#: Returns what a name of a module is where nothing is monkey-patched.
native: Callable[[str, str], Any] = monkey.get_original
_start_native: Callable[..., int] = native("_thread", "start_new_thread")
native_lock: Callable[[], Any] = native("_thread", "allocate_lock")
native_rlock: Callable[[], Any] = native("_thread", "RLock")
native_sleep: Callable[[float], None] = native("time", "sleep")
native_ident: Callable[[], int] = native("_thread", "get_ident")


def is_patched() -> bool:
    """Return whether sockets and threads of this process are gevent's."""
    return bool(monkey.is_module_patched("socket") and monkey.is_module_patched("threading"))


def has_patched_threads() -> bool:
    """Return whether :mod:`threading` is gevent's."""
    return bool(monkey.is_module_patched("threading"))


def is_plain_thread() -> bool:
    """Return whether the caller is a native thread without a hub, in a process that is not monkey-patched at all."""
    return not saved and get_hub_if_exists() is None


def native_held_lock() -> Any:
    """Return such a lock that is held: whoever waits for it waits until it is released."""
    lock = native_lock()
    lock.acquire()
    return lock


def start_native_thread(name: str, run: Callable[[], None]) -> None:
    """Run *run* in a daemonic thread of the operating system, monkey-patched or not."""
    if has_patched_threads():
        _start_native(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()


#: The hubs of the threads that :func:`start_hub_thread` has started.
_hubs: set[Any] = set()
#: Seconds for a thread to be parked, and those for which it is: the process is gone by then.
_TO_PARK, _PARKED = 1.0, 10.0


def start_hub_thread(name: str, run: Callable[[], None]) -> None:
    """Like :func:`start_native_thread`, for what waits: monkey-patched it does so in a hub of its own thread.

    The thread is parked when Python exits.
    """
    if not has_patched_threads():
        start_native_thread(name, run)
        return
    # The first hub of a process has gevent import its loop, under a lock that is gevent's own by now and wants a hub:
    # two threads that made the first one at once would wait for each other for good.
    get_hub()
    has_begun = native_held_lock()

    def run_beside_hub() -> None:
        hub = get_hub()
        _hubs.add(hub)
        has_begun.release()
        try:
            run()
        finally:
            _hubs.discard(hub)
            hub.destroy(destroy_loop=True)

    start_native_thread(name, run_beside_hub)
    has_begun.acquire()


@atexit.register
def _park_hub_threads() -> None:
    """Let these threads sleep: one that waits for the GIL in a greenlet while Python ends crashes the process."""
    for hub in tuple(_hubs):
        parked = native_held_lock()
        with contextlib.suppress(AttributeError, ValueError):  # its thread has just destroyed the hub
            hub.loop.run_callback_threadsafe(partial(_sleep, parked))
            parked.acquire(True, _TO_PARK)


def _sleep(parked: Any) -> None:
    parked.release()
    native_sleep(_PARKED)
