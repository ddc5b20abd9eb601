"""Lets threads and greenlets wait for results and for calls in a loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gevent._hub_local import get_hub_if_exists
from gevent.event import Event as GeventEvent
from gevent.hub import Waiter
from greenlet import getcurrent

from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.io_thread import reset_after_fork
from gnsq_lite.net.loop import Loop, loop_here
from gnsq_lite.net.os_threads import in_event_loop, native_held_lock

#: Maximum seconds of a single wait.
_LONG = 1e9
#: A flag for which greenlets of one loop can wait.
Event = GeventEvent


class Completion:
    """A result that is set once.  Any thread may set the result.  Any thread or greenlet may wait for the result.

    To wait, a greenlet switches to its hub, and a thread without a hub blocks on a native lock.
    """

    __slots__ = ("_done", "_error", "_value", "_wakers")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the result, wake the waiters, and return True.  If the result is already set, only return False."""
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # before wake(), because a waiter adds its waker and then checks _done again
        self.wake()
        return True

    def wake(self) -> None:
        """Wake the waiters."""
        for wake in tuple(self._wakers):
            wake()

    def done(self) -> bool:
        """Return whether the result is set."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds for the result, and return whether it is set."""
        return self._done or wait_any((self,), timeout)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, and return it or raise the error.  Raises TimeoutError after *timeout* seconds."""
        if not self.wait(timeout):
            raise TimeoutError(f"no result in {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value


def wait_any(completions: Sequence[Completion], timeout: float | None = None) -> bool:
    """Wait at most *timeout* seconds until at least one of *completions* is set, and return whether one is set.

    If none is set and the caller is gevent's hub, which must not block, raises ClosedError.
    """
    reset_after_fork()
    if in_event_loop():
        raise ClosedError("a blocking call was made in the event loop of async handlers: await asyncio.to_thread(...)")
    limit = _LONG if timeout is None else max(0.0, min(timeout, _LONG))
    wake, park = _parking(limit) if get_hub_if_exists() is None else _greenlet_parking(loop_here(), limit)
    for each in completions:
        each._wakers.append(wake)
    try:
        if not _is_any_done(completions):
            park()
    finally:
        for each in completions:
            each._wakers.remove(wake)
    return _is_any_done(completions)


def _is_any_done(completions: Sequence[Completion]) -> bool:
    return any(each._done for each in completions)


def _parking(limit: float) -> tuple[Callable[[], None], Callable[[], object]]:
    """Return (wake, park).  park() blocks this thread for at most *limit* seconds, until a thread calls wake()."""
    lock = native_held_lock()

    def wake() -> None:
        with suppress(RuntimeError):  # an earlier wake() has released the lock
            lock.release()

    return wake, lambda: lock.acquire(True, limit)


def _greenlet_parking(loop: Loop, limit: float) -> tuple[Callable[[], None], Callable[[], object]]:
    """Return (wake, park) for the current greenlet, as :func:`_parking` does for a thread."""
    waiter: Any = Waiter(loop.hub)
    resume = partial(waiter.switch, None)

    def park() -> None:
        if in_hub():
            raise ClosedError("a blocking call was made in gevent's hub")
        # Even without a limit a timer is needed, because a hub without timers and sockets would raise LoopExit.
        timer: Any = loop.hub.loop.timer(limit)
        with timer:
            timer.start(resume, update=True)  # update, because the loop's cached time may be old
            waiter.get()

    return partial(loop.call_soon, resume), park


def in_hub() -> bool:
    """Return whether the current greenlet is gevent's hub, which must not block."""
    return not sys.is_finalizing() and getcurrent() is get_hub_if_exists()  # a finalizing Python has no greenlets


def run_in_loop(loop: Loop, run: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
    """Call *run* in a greenlet of *loop*, and return the result or raise the error of *run*.  Thread-safe.

    Raises ClosedError if the loop's thread does not run, in a forked child or because Python exits.  Raises
    TimeoutError after *timeout* seconds, although *run* continues.  In gevent's hub, which must not block, raises
    TimeoutError at once.
    """
    if in_hub():
        raise TimeoutError("the call would block gevent's hub")
    return start_in_loop(loop, run, *args).result(timeout)


def start_in_loop(loop: Loop, run: Callable[..., Any], *args: Any) -> Completion:
    """Call *run* in a greenlet of *loop*, and return the Completion of its result.  Thread-safe.

    Raises ClosedError as :func:`run_in_loop`.
    """
    reset_after_fork()
    loop.check()
    outcome = Completion()

    def work() -> None:
        try:
            value = run(*args)
        except BaseException as error:
            outcome.settle(error=error)
            if not isinstance(error, (NSQError, TimeoutError)):
                raise
        else:
            outcome.settle(value)

    loop.call_soon(lambda: loop.spawn("call", work))
    return outcome


def run_or_leave(
    loop: Loop, run: Callable[..., Any], *args: Any, timeout: float | None = None, wait: bool = True
) -> None:
    """Call *run* in a greenlet of *loop*.  Wait for its end, unless *wait* is false or the caller is gevent's hub.

    If this function waits, it raises the errors of :func:`run_in_loop`.
    """
    if not wait or (in_hub() and not loop.stopped):
        loop.call_soon(lambda: loop.spawn("call", run, *args))
    else:
        run_in_loop(loop, run, *args, timeout=timeout)
