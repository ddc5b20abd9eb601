"""Threads and locks of the operating system for tests, whether or not the process is monkey-patched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gevent import monkey

_start_native: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")
native_lock: Callable[[], Any] = monkey.get_original("_thread", "allocate_lock")
native_sleep: Callable[[float], None] = monkey.get_original("time", "sleep")
native_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")


def is_patched() -> bool:
    """Return whether sockets and threads of this process are gevent's."""
    return bool(monkey.is_module_patched("socket") and monkey.is_module_patched("threading"))


def native_held_lock() -> Any:
    """Return an acquired native lock: ``acquire()`` waits until another thread releases it."""
    lock = native_lock()
    lock.acquire()
    return lock


def start_native_thread(name: str, run: Callable[[], None]) -> None:
    """Run *run* in a daemonic native thread."""
    if monkey.is_module_patched("threading"):
        _start_native(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()
