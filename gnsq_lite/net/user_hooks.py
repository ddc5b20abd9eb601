"""Calls the user's hooks and logging handlers, and catches their exceptions.

In a monkey-patched process gevent has patched the locks of :mod:`logging`.  A native thread may wait for such a lock
permanently, and a hub cannot wait at all.  In both cases a greenlet of the loop logs the line a moment later.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.net.io_thread import loop_of_handlers
from gnsq_lite.net.loop import Killed, Loop, current_greenlet, loop_here
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.net.settings import Hooks
from gnsq_lite.net.waiting import in_hub

log = logging.getLogger("gnsq_lite.reader")

#: Maximum number of warnings about nsqds in one period, and the seconds of a period.
_MOST, _PERIOD = 100, 60.0


def log_safely(log: logging.Logger, level: int, text: str, *args: Any, **keywords: Any) -> None:
    """Log from any thread or greenlet.  Exceptions of the user's logging handlers are printed to standard error.

    ``exc_info`` must be an exception or a tuple, not True, because the line may be logged after the except block.
    """
    loop = loop_for_hooks()
    if loop is None:
        _log(log, level, text, args, keywords)
    else:
        loop.call_soon(partial(loop.spawn, "log", _log, log, level, text, args, keywords))


def _log(log: logging.Logger, level: int, text: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    try:
        log.log(level, text, *args, stacklevel=3, **keywords)
    except Exception:
        traceback.print_exc()


class ErrorLog:
    """Logs errors of nsqds, at most 100 warnings per minute, because an nsqlookupd may list ever new dead nsqds."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._ends, self._count = float("-inf"), 0

    def add(self, error: NSQError, *, is_news: bool = True, extra: Mapping[str, Any] | None = None) -> None:
        """Log *error* as a warning if *is_news* is true and the limit allows a warning.  Otherwise log at DEBUG."""
        if is_news:
            now = self._clock.now()
            if now >= self._ends:
                self._ends, self._count = now + _PERIOD, 0
            self._count += 1
            if self._count == _MOST + 1:
                said = "more than %d errors of nsqds in this minute: until it ends, errors are logged at DEBUG"
                log_safely(self._log, logging.WARNING, said, _MOST)
        is_warning = is_news and self._count <= _MOST
        log_safely(self._log, logging.WARNING if is_warning else logging.DEBUG, "%s", error, extra=extra)


def loop_for_hooks() -> Loop | None:
    """Return the loop in which to log and call hooks, or None if the caller may do so itself (see the module)."""
    if not is_patched():
        return None
    loop = loop_of_handlers()
    if loop is not None:
        return loop
    return loop_here() if in_hub() else None


class UserHooks:
    """Calls the user's hooks and logs their exceptions.  *on_exit* gets SystemExit and KeyboardInterrupt."""

    def __init__(
        self,
        loop: Loop,
        hooks: Hooks,
        *,
        is_closing: Callable[[], bool],
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self._loop, self._hooks, self._is_closing, self._on_exit = loop, hooks, is_closing, on_exit
        self._left: deque[str] = deque()

    @property
    def left(self) -> int:
        """Number of hook calls in greenlets of the loop that have not returned."""
        return len(self._left)

    def call(self, name: str, *args: Any) -> None:
        """Call the hook *name* of Hooks, if the user has set it, now or soon in a greenlet.  Thread-safe."""
        hook = getattr(self._hooks, name)
        if hook is None:
            return
        # A hook may wait, for example in stats(), but the hub must not wait, nor a native thread for a patched lock.
        if current_greenlet() is self._loop.hub or loop_for_hooks() is not None:
            self._left.append(name)
            self._loop.call_soon(partial(self._loop.spawn, "hook", self._call_left, name, *args))
            return
        try:
            hook(*args)
        except (KeyboardInterrupt, SystemExit) as error:
            self._loop.call_soon(partial(self._on_exit, error))
        except BaseException as error:  # gevent.Timeout is no Exception
            if self._is_closing() and isinstance(error, Killed):
                raise  # close() of the Reader has killed this greenlet
            log_safely(log, logging.ERROR, "the hook %s failed", name, exc_info=error)

    def _call_left(self, name: str, *args: Any) -> None:
        try:
            self.call(name, *args)
        finally:
            self._left.pop()
