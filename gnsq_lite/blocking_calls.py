"""Runs blocking calls without blocking the other greenlets of the thread.

* If sockets are monkey-patched, the call runs in the calling greenlet; patched sockets switch to other greenlets.
* If sockets are not patched and the thread has a hub, the call runs in a native thread, and the calling greenlet waits.
* If the thread has no hub, or the hub itself calls, the call runs in the calling thread and blocks it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Hub
from gevent.threadpool import ThreadPool
from gevent.util import wrap_errors
from greenlet import getcurrent

T = TypeVar("T")

#: Maximum native threads per hub.  Threads are started on demand.  The hub's own pool is not used, because it also
#: resolves host names, and ten unreachable servers would occupy all its threads.
POOL_SIZE = 64

#: Id of the process that created the pools and the hub.
_pid = os.getpid()
_pools: weakref.WeakKeyDictionary[Hub, ThreadPool] = weakref.WeakKeyDictionary()


def call_cooperatively(call: Callable[..., T], *args: Any, timeout: float) -> T:
    """Run *call* with *args* and return its result, while other greenlets of the thread keep running.

    Raises TimeoutError after *timeout* seconds.  In a thread without a hub and in the hub, only the call's own limits
    apply.  After a timeout, a call in a native thread continues in the background until its own limits end it.
    """
    hub = get_hub_if_exists()
    if hub is None or getcurrent() is hub:
        return call(*args)
    limit = gevent.Timeout(timeout)
    try:
        with limit:
            if monkey.is_module_patched("socket"):
                return call(*args)
            # gevent would print an exception that a thread of the pool raises, so the thread returns the exception.
            result: Any = _pool_of(hub).spawn(wrap_errors((BaseException,), call), *args).get()
    except gevent.Timeout as expired:
        if expired is not limit:
            raise
        raise TimeoutError(f"no result in {timeout:g} s") from None
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]


def _pool_of(hub: Hub) -> ThreadPool:
    pool = _pools.get(hub)
    if pool is None:
        pool = _pools[hub] = ThreadPool(POOL_SIZE, hub=hub)
    return pool


def after_fork() -> None:
    """Replace pools and hub in a forked child.  A second call in the same process does nothing.

    The child has no pool threads, and after an unpatched os.fork() other threads cannot wake the hub.  Python's fork
    hook calls this function.  After a fork in C :mod:`gnsq_lite.net.io_thread` calls this function.
    """
    global _pid
    if _pid == os.getpid():
        return
    _pid = os.getpid()
    _pools.clear()
    hub = get_hub_if_exists()
    if hub is not None:
        gevent.reinit(hub)


os.register_at_fork(after_in_child=after_fork)
