"""Calls the user's hooks and logging handlers, so that their exceptions end no greenlet or thread of the library.

A logging filter or handler may raise.  In a monkey-patched process gevent patches the locks of :mod:`logging`: a native
thread may wait for such a lock permanently, and a hub cannot wait at all.  In these cases a greenlet of the loop logs
the line a moment later.
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

#: Maximum warnings about nsqds in one period; the period in seconds.
_MOST, _PERIOD = 100, 60.0


def log_safely(log: logging.Logger, level: int, text: str, *args: Any, **keywords: Any) -> None:
    """Log from any thread or greenlet; print exceptions of the user's logging handlers to standard error.

    ``exc_info`` must be the exception itself, because the line may be logged after the except block.
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
    """Logs errors of nsqds, at most 100 warnings per minute: an nsqlookupd may keep listing new dead nsqds."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._ends, self._count = float("-inf"), 0

    def add(self, error: NSQError, *, is_news: bool = True, extra: Mapping[str, Any] | None = None) -> None:
        """Log *error* as a warning if *is_news* and the limit allows it, else at DEBUG."""
        if is_news:
            now = self._clock.now()
            if now >= self._ends:
                self._ends, self._count = now + _PERIOD, 0
            self._count += 1
            if self._count == _MOST + 1:
                said = "more than %d errors of nsqds within a minute; the others of this minute are logged at DEBUG"
                log_safely(self._log, logging.WARNING, said, _MOST)
        is_warning = is_news and self._count <= _MOST
        log_safely(self._log, logging.WARNING if is_warning else logging.DEBUG, "%s", error, extra=extra)


def loop_for_hooks() -> Loop | None:
    """Return the loop that must log and call hooks for the caller; None if the caller may do so itself."""
    if not is_patched():
        return None
    loop = loop_of_handlers()
    if loop is not None:
        return loop
    return loop_here() if in_hub() else None


class UserHooks:
    """Calls the user's hooks; logs their exceptions, but passes SystemExit and KeyboardInterrupt to *on_exit*."""

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
        """Return the number of hook calls that were passed to a greenlet of the loop and have not returned."""
        return len(self._left)

    def call(self, name: str, *args: Any) -> None:
        """Call the hook *name* of :class:`~gnsq_lite.net.settings.Hooks`, if it is set.  Thread-safe."""
        hook = getattr(self._hooks, name)
        if hook is None:
            return
        # A hook may wait, for example in stats(), but the hub must not, nor a native thread for a patched lock.
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
                raise  # the end of the Reader killed this greenlet
            log_safely(log, logging.ERROR, "the hook %s failed", name, exc_info=error)

    def _call_left(self, name: str, *args: Any) -> None:
        try:
            self.call(name, *args)
        finally:
            self._left.pop()
