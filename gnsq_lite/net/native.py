"""The operating system's threads and locks, whatever is monkey-patched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gevent import monkey

_start_native: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")
_native_lock: Callable[[], Any] = monkey.get_original("_thread", "allocate_lock")
native_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")


def is_patched() -> bool:
    """Whether sockets and threads of this process are gevent's."""
    return bool(monkey.is_module_patched("socket") and monkey.is_module_patched("threading"))


def native_lock() -> Any:
    """Return a lock of the operating system's threads, monkey-patched or not."""
    return _native_lock()


def start_native_thread(name: str, run: Callable[[], None]) -> None:
    """Run *run* in a daemonic thread of the operating system, monkey-patched or not."""
    if is_patched():
        _start_native(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()
