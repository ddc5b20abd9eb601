"""Wraps an ``async def`` handler in a Worker's middleware.

Middleware whose hooks are all ``async def`` runs in the event loop.  Other middleware may block, so it runs in a native
thread: its ``before``, the wait for the handler, which runs in the event loop, and its ``after``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gnsq_lite.consume.async_pool import in_thread
from gnsq_lite.keywords import is_async
from gnsq_lite.net.io_thread import loop_of_handlers
from gnsq_lite.worker.specs import Handler, decoding

log = logging.getLogger("gnsq_lite.worker")

_HOOKS = ("before", "after", "failed")
#: In the thread of sync middleware: the event loop, and the futures of the handlers for which the thread waits.
_waits = threading.local()


class Hooks(Protocol):
    """The part of :class:`gnsq_lite.worker.Middleware` that is used here."""

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]: ...

    def _replaces_wrap(self) -> bool: ...

    def _overridden(self, name: str) -> Callable[..., Any] | None: ...


def wrapped_async(
    handler: Handler, middleware: Iterable[Hooks], decode: Callable[[bytes], Any] | None
) -> Callable[[Any], Any]:
    """Return an async function that calls the handler in all *middleware*.  The first middleware is the outermost."""
    function: Any = handler.function
    call = function if decode is None else decoding(function, decode)
    for each in reversed(list(middleware)):
        hooks = [hook for name in _HOOKS if (hook := each._overridden(name)) is not None]
        if hooks and all(map(is_async, hooks)) and not each._replaces_wrap():
            call = _in_loop(each, call if is_async(call) else _in_thread(call))
            continue
        outer = each.wrap(blocking := _blocking(call) if is_async(call) else call, handler)
        call = outer if outer is not blocking else call
    return call if is_async(call) else _in_thread(call)


def _in_loop(middleware: Hooks, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    before, after, failed = (middleware._overridden(name) for name in _HOOKS)

    async def wrapped(message: Any) -> None:
        if before is not None:
            await before(message)
        try:
            await call(message)
        except BaseException as error:
            if failed is not None:
                try:
                    await failed(message, error)
                except Exception:
                    log.exception("middleware raised in its failed() hook")
            raise
        if after is not None:
            await after(message)

    return wrapped


def _blocking(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for the thread of sync middleware that runs *call* in the event loop and waits for it."""

    def blocking(message: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(call(message), _waits.loop)
        _waits.futures.append(future)
        future.result()

    return blocking


def _in_thread(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an async function that calls sync middleware in a native thread.  If cancelled, it cancels the handler."""

    async def wrapped(message: Any) -> None:
        loop, futures = asyncio.get_running_loop(), list[Any]()

        def run() -> None:
            _waits.loop, _waits.futures = loop, futures
            call(message)

        done = asyncio.ensure_future(in_thread(loop_of_handlers(), run))
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            await asyncio.wait([done])  # the hooks of the middleware see the end of the handler
            done.exception()
            raise

    return wrapped
