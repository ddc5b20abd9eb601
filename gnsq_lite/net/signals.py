"""Waits for the end of a Reader.  A first signal drains the Reader, and a second stops it at once (CLOSE-1)."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.waiting import Completion, wait_any

log = logging.getLogger("gnsq_lite.reader")

#: Maximum seconds of one wait, because a signal that arrives just before a wait has an effect only after the wait.
_CHECK_EVERY = 0.5


def in_main_thread() -> bool:
    """Return whether the caller runs in the main thread, which runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


class Stages:
    """The two stages of a shutdown: drain, then end at once.  Methods that begin a stage are signal handlers.

    These methods raise no exception.  In a monkey-patched process a signal may interrupt the handler of a message, and
    an exception would make this message fail.
    """

    def __init__(self) -> None:
        #: Set when the graceful shutdown begins.
        self.drain = Completion()
        #: Set when everything must stop at once.
        self.at_once = Completion()

    def advance(self, number: int | None = None, frame: Any = None) -> None:
        """Begin to drain.  If draining has begun already, begin to end at once."""
        if not self.drain.settle(number):
            self.at_once.settle(number)

    def begin_drain(self, number: int, frame: Any = None) -> None:
        """Begin the graceful shutdown.  A second call does nothing."""
        self.drain.settle(number)

    def end_at_once(self, number: int, frame: Any = None) -> None:
        """Begin both stages."""
        self.drain.settle(number)
        self.at_once.settle(number)

    @contextmanager
    def installed(self, handlers: Iterable[tuple[int, Callable[[int, Any], None]]]) -> Iterator[None]:
        """Install signal handlers for the ``with`` block, and then restore the earlier handlers."""
        before = [(number, signal.signal(number, handler)) for number, handler in handlers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)


def until_signal(
    ended: Completion,
    close: Callable[..., Any],
    begin: Callable[[], object] = lambda: None,
    *,
    numbers: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    timeout: float | None = None,
) -> bool:
    """Call *begin*, wait at most *timeout* seconds for *ended*, and return whether *ended* is set.

    If a signal of *numbers* arrives that the program does not handle, call ``close()`` and wait for its end without
    *timeout*.  After a second signal, call ``close(0)``.  A signal during *begin* has its effect after *begin*.
    """
    stages, numbers = Stages(), tuple(numbers)
    with stages.installed((number, stages.advance) for number in _unhandled(numbers)):
        begin()
        limit = float("inf") if timeout is None else timeout
        _wait(ended, stages.drain, timeout=limit, interrupted=stages if signal.SIGINT in numbers else None)
        if stages.drain.done():
            _close(stages, close)
    return ended.done()


def _unhandled(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals of *numbers* that have Python's default handler.  Outside the main thread, return none."""
    if not in_main_thread():
        return []
    fresh = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    return [number for number in numbers if signal.getsignal(number) is fresh[number]]


def run_in_thread(run: Callable[[], object]) -> None:
    """Call *run* in a new thread.  If no thread can be started, call it here; a second signal then has no effect."""
    try:
        threading.Thread(target=run, name="gnsq_lite-close", daemon=True).start()
    except RuntimeError:
        run()


def _close(stages: Stages, close: Callable[..., Any]) -> None:
    """Call *close* in a thread and wait for its end.  After a second signal, call ``close(0)``."""
    closed = Completion()

    def run() -> None:
        try:
            close()
        finally:
            closed.settle()

    log.info("a signal arrived: closing; a second signal closes at once")
    run_in_thread(run)
    _wait(closed, stages.at_once, interrupted=stages)
    if not closed.done():
        log.warning("a second signal arrived: closing at once")
        close(0.0)


def _wait(*completions: Completion, timeout: float = float("inf"), interrupted: Stages | None = None) -> None:
    """Wait for any of *completions*.  If *interrupted* is given, a KeyboardInterrupt begins its next stage."""
    ends = SYSTEM_CLOCK.now() + timeout
    while not any(each.done() for each in completions) and (left := ends - SYSTEM_CLOCK.now()) > 0.0:
        try:
            wait_any(completions, min(left, _CHECK_EVERY))
        except KeyboardInterrupt:
            if interrupted is None:
                raise
            interrupted.advance(signal.SIGINT)
