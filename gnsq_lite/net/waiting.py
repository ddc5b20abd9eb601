"""Results and events that threads and greenlets can wait for."""

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
from gnsq_lite.net.io_thread import look_for_fork
from gnsq_lite.net.loop import Loop, loop_here
from gnsq_lite.net.os_threads import native_held_lock

#: Maximum seconds of a single wait.
_LONG = 1e9
#: A flag for the greenlets of one loop.
Event = GeventEvent


class Completion:
    """A result that is set once.  Any thread may set it, and any thread or greenlet may wait for it.

    Waiting blocks no other greenlet: a greenlet switches to its hub; a thread without a hub blocks on a native lock.
    """

    __slots__ = ("_done", "_error", "_value", "_wakers")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the result.  If it is already set, change nothing and return False."""
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # before the wakers are read: a waiter adds its waker and then checks _done again
        self.wake()
        return True

    def wake(self) -> None:
        """Wake the waiters; a second call does nothing."""
        for wake in tuple(self._wakers):
            wake()

    def done(self) -> bool:
        """Return whether the result is set."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the result, at most *timeout* seconds; return whether it is set."""
        return self._done or wait_any((self,), timeout)

    def result(self, timeout: float | None = None) -> Any:
        """Wait, then return the value or raise the error.  Raises TimeoutError after *timeout* seconds."""
        if not self.wait(timeout):
            raise TimeoutError(f"no result in {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value


def wait_any(completions: Sequence[Completion], timeout: float | None = None) -> bool:
    """Wait until at least one of *completions* is set, at most *timeout* seconds; return whether one is.

    Raises ClosedError in gevent's hub, which must not block.
    """
    look_for_fork()
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
    """Return (wake, park).  park() blocks this thread until any thread calls wake(), or for *limit* seconds."""
    lock = native_held_lock()

    def wake() -> None:
        with suppress(RuntimeError):  # the lock was released before
            lock.release()

    return wake, lambda: lock.acquire(True, limit)


def _greenlet_parking(loop: Loop, limit: float) -> tuple[Callable[[], None], Callable[[], object]]:
    """Return (wake, park) for the current greenlet; see :func:`_parking`."""
    waiter: Any = Waiter(loop.hub)
    resume = partial(waiter.switch, None)

    def park() -> None:
        if in_hub():
            raise ClosedError("a blocking call was made in the event loop itself")
        # There is always a timer: without an active timer or socket the hub would end the wait with LoopExit.
        timer: Any = loop.hub.loop.timer(limit)
        with timer:
            timer.start(resume, update=True)  # update: the loop's cached time may be old
            waiter.get()

    return partial(loop.call_soon, resume), park


def in_hub() -> bool:
    """Return whether the current greenlet is gevent's hub, which must not block."""
    return not sys.is_finalizing() and getcurrent() is get_hub_if_exists()  # no greenlets exist while finalizing


def run_in_loop(loop: Loop, run: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
    """Run *run* in a greenlet of *loop* and return its result.  Thread-safe.

    Raises ClosedError if the loop's thread does not run: in a forked child, and when the interpreter exits.  Raises
    TimeoutError after *timeout* seconds, but *run* continues; in gevent's hub, which must not block, raises it at once.
    """
    look_for_fork()
    loop.check()
    if in_hub():
        raise TimeoutError("this would wait in gevent's hub")
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
    return outcome.result(timeout)


def run_or_leave(
    loop: Loop, run: Callable[..., Any], *args: Any, timeout: float | None = None, wait: bool = True
) -> None:
    """Run *run* in a greenlet of *loop*; wait for its end unless *wait* is false or the caller is gevent's hub.

    Raises the errors of :func:`run_in_loop`.
    """
    if not wait or (in_hub() and not loop.stopped):
        loop.call_soon(lambda: loop.spawn("call", run, *args))
    else:
        run_in_loop(loop, run, *args, timeout=timeout)
