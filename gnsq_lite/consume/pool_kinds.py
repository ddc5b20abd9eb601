"""Chooses and makes the pool that runs a Reader's handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gnsq_lite.consume.pools import GreenletPool, InlinePool, Pool, ThreadPool
from gnsq_lite.consume.run_handler import HandlerCalls
from gnsq_lite.errors import OptionError
from gnsq_lite.keywords import is_async
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import is_patched

#: Default concurrency of greenlets and tasks, and of threads.
DEFAULT_GREENLETS = 100
DEFAULT_THREADS = 8

PoolKind = Literal["greenlet", "thread", "inline", "async"]


def pool_kind(asked: Literal["auto", "greenlet", "thread", "inline"], handler: Callable[..., Any]) -> PoolKind:
    """Return the kind of pool for the option ``handler_pool`` and a handler.  Raises OptionError.

    An ``async def`` needs the kind "async".  For other handlers "auto" depends on whether the process is patched.
    """
    if is_async(handler):
        if is_patched():
            name = getattr(handler, "__qualname__", handler)
            raise OptionError("handler", name, "is an async def, which a monkey-patched process cannot run")
        if asked != "auto":
            raise OptionError("handler_pool", asked, "does not apply to an async def, which runs in an event loop")
        return "async"
    if asked == "auto":
        return "greenlet" if is_patched() else "thread"
    return asked


def make_pool(
    kind: PoolKind,
    loop: Loop,
    calls: HandlerCalls,
    concurrency: int,
    on_exit: Callable[[BaseException], None],
    lifespan: Any = None,
) -> Pool:
    """Return a new pool."""
    if kind == "inline":
        return InlinePool(calls.runner(), on_exit)
    if kind == "async":
        from gnsq_lite.consume.async_pool import AsyncPool  # here, because asyncio takes long to import

        return AsyncPool(loop, calls, concurrency, on_exit, lifespan)
    return (GreenletPool if kind == "greenlet" else ThreadPool)(loop, calls.runner(), concurrency, on_exit)


def default_concurrency(kind: str, max_in_flight: int) -> int:
    """Return the default concurrency of a pool, at most *max_in_flight*."""
    most = DEFAULT_GREENLETS if kind in ("greenlet", "async") else DEFAULT_THREADS
    return 1 if kind == "inline" else max(1, min(max_in_flight, most))
