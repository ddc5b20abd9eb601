"""Keeps a blocking call from stopping the other greenlets of its thread.

* Sockets are monkey-patched: the call runs here; its sockets give way to other greenlets by themselves.
* They are not, and this thread runs greenlets: the call runs in a native thread; its caller waits as a greenlet.
* This thread has no hub, so there is no greenlet to stop: the call runs here.
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
from greenlet import getcurrent

T = TypeVar("T")

#: Native threads per hub, each made when it is first needed.  Not the hub's own pool: that one resolves host names for
#: the whole process, and ten dead servers would fill it.
POOL_SIZE = 64

#: The process that the pools and the hub are made for.
_pid = os.getpid()
_pools: weakref.WeakKeyDictionary[Hub, ThreadPool] = weakref.WeakKeyDictionary()


def call_cooperatively(call: Callable[..., T], *args: Any, timeout: float) -> T:
    """Return ``call(*args)``; other greenlets of this thread run on meanwhile.

    Raises TimeoutError after *timeout* seconds, where the wait can be ended from outside: not in a thread without a
    hub, where the call's own time limits are the only ones.  A call that was given up in a native thread goes on
    there, unseen, until its own limits end it.
    """
    hub = get_hub_if_exists()
    if hub is None or getcurrent() is hub:
        return call(*args)
    limit = gevent.Timeout(timeout)
    try:
        with limit:
            if monkey.is_module_patched("socket"):
                return call(*args)
            outcome: list[Any] = []
            _pool_of(hub).spawn(_run, outcome, call, args).get()
    except gevent.Timeout as expired:
        if expired is not limit:
            raise
        raise TimeoutError(f"no result in {timeout:g} s") from None
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _run(outcome: list[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Keep the error as a value: gevent prints what a thread of a pool raises."""
    try:
        outcome.extend((call(*args), None))
    except BaseException as error:
        outcome.extend((None, error))


def _pool_of(hub: Hub) -> ThreadPool:
    pool = _pools.get(hub)
    if pool is None:
        pool = _pools[hub] = ThreadPool(POOL_SIZE, hub=hub)
    return pool


def after_fork() -> None:
    """Replace pools and hub in a forked child; a second call in the same process does nothing.

    The threads of the pools are gone there, and an unpatched os.fork() leaves a hub that other threads cannot wake.
    Python's hook calls it, and after a fork in C :mod:`gnsq_lite.net.io_thread`.
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
