"""Results and events that threads and greenlets can wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gevent._hub_local import get_hub_if_exists
from gevent.event import Event as GeventEvent
from gevent.hub import Waiter, get_hub
from greenlet import getcurrent

from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.io_thread import look_for_fork
from gnsq_lite.net.loop import Loop, loop_here
from gnsq_lite.net.os_threads import native_held_lock

#: Maximum seconds of a single wait.
_LONG = 1e6


class Event(GeventEvent):
    """A flag for the greenlets of one loop: ``set()``, ``clear()``, ``wait()``."""


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
        """Set the result; return False without any change if it is already set."""
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
    parking = Parking()
    for each in completions:
        each._wakers.append(parking.wake)
    try:
        if not _is_any_done(completions):
            parking.park(timeout)
    finally:
        for each in completions:
            each._wakers.remove(parking.wake)
    return _is_any_done(completions)


def _is_any_done(completions: Sequence[Completion]) -> bool:
    return any(each._done for each in completions)


class Parking:
    """A single wait: ``park()`` returns once any thread has called ``wake()``."""

    __slots__ = ("_lock", "_loop", "_resume", "_waiter", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._lock: Any = None
        self._loop: Loop | None = None
        if get_hub_if_exists() is None:
            self._lock = native_held_lock()
        else:
            self._loop = loop_here()
            self._waiter: Any = Waiter(self._loop.hub)
            self._resume = partial(self._waiter.switch, None)

    def wake(self) -> None:
        """End the current or future wait.  Thread-safe; further calls do nothing."""
        if self._woken:
            return
        self._woken = True
        if self._loop is None:
            try:
                self._lock.release()
            except RuntimeError:  # another thread released the lock at the same time
                pass
        elif self._loop.is_here():
            self._loop.hub.loop.run_callback(self._resume)  # no Python bytecode in which a signal handler could raise
        else:
            self._loop.call_soon(self._resume)

    def park(self, timeout: float | None = None) -> bool:
        """Wait until woken, at most *timeout* seconds; return whether it was woken."""
        if self._loop is None:
            self._lock.acquire(True, -1 if timeout is None else max(0.0, min(timeout, _LONG)))
            return self._woken
        if getcurrent() is self._loop.hub:
            raise ClosedError("a blocking call was made in the event loop itself")
        if self._woken:
            return True
        # There is always a timer: without an active timer or socket the hub would end the wait with LoopExit.
        timer: Any = self._loop.hub.loop.timer(_LONG if timeout is None else max(0.0, min(timeout, _LONG)))
        with timer:
            # Without update a timer starts at the loop's cached time, which may be old.
            timer.start(self._resume, update=True)
            self._waiter.get()
        return self._woken


def wait_or_set(event: Event, timeout: float | None) -> None:
    """Wait in a greenlet until *event* is set; set it after *timeout* seconds."""
    if timeout is None:
        event.wait()
        return
    timer: Any = get_hub().loop.timer(max(0.0, timeout))
    with timer:
        timer.start(event.set, update=True)
        event.wait()


def in_hub() -> bool:
    """Return whether the current greenlet is gevent's hub, which must not block."""
    return not sys.is_finalizing() and getcurrent() is get_hub_if_exists()  # no greenlets exist while finalizing


def run_in_loop(loop: Loop, run: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
    """Run *run* in a greenlet of *loop* and return its result.  Thread-safe.

    Raises ClosedError if the loop's thread does not run: in a forked child, and when the interpreter exits.  Raises
    TimeoutError after *timeout* seconds (*run* goes on), and at once in gevent's hub, which must not block.
    """
    look_for_fork()
    loop.check()
    if in_hub():
        raise TimeoutError("this would wait in gevent's hub")
    outcome = Completion()
    tasks: list[Any] = []

    def work() -> None:
        try:
            value = run(*args)
        except BaseException as error:
            outcome.settle(error=error)
            if not isinstance(error, (NSQError, TimeoutError)):
                raise
        else:
            outcome.settle(value)

    def end() -> None:
        if not tasks or tasks[0].dead:
            outcome.settle(error=ClosedError("an exception in the library's code has ended this call"))

    loop.after_reset.add(end)
    try:
        loop.call_soon(lambda: tasks.append(loop.spawn("call", work)))
        return outcome.result(timeout)
    finally:
        loop.after_reset.discard(end)


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
