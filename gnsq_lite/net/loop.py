"""The loop that does the I/O, and how any thread or greenlet waits for it.

A :class:`Loop` is a gevent hub with a thread-safe inbox; :func:`gnsq_lite.net.io_thread.io_loop` chooses one.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gevent
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Hub, get_hub
from greenlet import getcurrent

from gnsq_lite.errors import ClosedError
from gnsq_lite.net.forks import look_for_fork
from gnsq_lite.net.os_threads import interpreter_exit, native_ident, native_lock

log = logging.getLogger("gnsq_lite.net")

# gevent imports these when they are first needed.  A fork in the middle of an import leaves it locked in the child for
# good, so nothing is to be imported while connections are made.
for _lazy in ("loop", "resolver", "threadpool"):
    getattr(gevent.config, _lazy)


#: Seconds no wait and no lock outlasts in one go.
_LONG = 1e6

#: Seconds one task may take in a turn of the loop before I/O gets its turn.
SLICE = 0.01

#: Waits that end before the loop looks after its sockets again.
_RESUMED_AT_ONCE = 256


#: What a greenlet in ``park()`` is resumed with; any other switch to it is none of ours.
RESUMED = object()


class Loop:
    """A hub and a thread-safe way into it.  Made in the hub's own thread."""

    def __init__(self, hub: Hub, *, keep_alive: bool = False) -> None:
        self.hub = hub
        self.ident = native_ident()
        #: Whether its thread is the parent's: in a forked child nobody turns it any more.
        self.gone = False
        #: Whether the interpreter is exiting, and its thread was stopped for good.
        self.stopped = False
        #: Whether it is the library's own, in a thread of its own, and all other threads are the callers'.
        self.is_shared = keep_alive
        self.soon: Callable[..., Any] = hub.loop.run_callback
        self._inbox: deque[Callable[[], Any]] = deque()
        self._signalled = False
        #: Greenlets whose wait is over, None for each that was ended otherwise; how many may run before I/O does.
        self._ready: deque[Any] = deque()
        self._turns = 0
        self._switch_to_hub = hub.switch
        #: What is to be told in a greenlet of its own, and whether that runs.
        self._untold: deque[Callable[[], None]] = deque()
        self._telling = False
        self._async = hub.loop.async_(ref=keep_alive)
        self._async.start(self._drain)

    def is_here(self) -> bool:
        """Whether the caller runs in this loop's thread."""
        return native_ident() == self.ident

    def call_soon(self, act: Callable[[], Any]) -> None:
        """Have *act* called in the hub.  From any thread; never blocks; *act* must not block either."""
        if native_ident() == self.ident:
            self.soon(act)
            return
        self._inbox.append(act)
        if not self._signalled:  # set before the send, cleared before the drain: no wake-up is lost
            self._signalled = True
            self._async.send()

    def _drain(self) -> None:
        self._signalled = False
        inbox = self._inbox
        while inbox:
            act = inbox.popleft()
            try:
                act()
            except Exception:
                log.exception("an act of the I/O loop failed")

    def tell(self, act: Callable[[], None]) -> None:
        """Have *act*, which may wait and raises nothing, called in a greenlet, in order; from any thread."""
        self._untold.append(act)
        self.call_soon(self._begin_to_tell)

    def is_telling(self) -> bool:
        """Whether something is still to be told."""
        return self._telling or bool(self._untold)

    def _begin_to_tell(self) -> None:
        if not self._telling:
            self._telling = True
            self.spawn("telling", self._tell)

    def _tell(self) -> None:
        try:
            while self._untold:
                self._untold.popleft()()
        finally:
            self._telling = False

    def resume_soon(self, greenlets: Iterable[Any]) -> None:
        """Have *greenlets*, which wait in :meth:`park`, resumed in their order; in this thread."""
        if not self._ready:
            self.soon(self._resume)
        self._ready.extend(greenlets)

    def _resume(self) -> None:
        """In the hub: resume who is ready.  Each that parks again resumes the next itself; the last comes back here."""
        ready, self._turns = self._ready, _RESUMED_AT_ONCE
        try:
            while ready and self._turns > 0:
                self._turns -= 1
                greenlet = ready.popleft()
                if greenlet is not None:
                    greenlet.switch(RESUMED)
        finally:  # a bare greenlet that dies of an exception raises it here
            self._turns = 0
            if ready:
                self.soon(self._resume)

    def park(self, greenlet: Any) -> None:
        """Wait in *greenlet*, the caller's own and of this thread, until it is resumed by :meth:`resume_soon`."""
        ready = self._ready
        try:
            while True:
                following = None
                if self._turns and ready:
                    self._turns -= 1
                    following = ready.popleft()
                if (self._switch_to_hub() if following is None else following.switch(RESUMED)) is RESUMED:
                    return
        except BaseException:  # killed, or out of patience: nobody is to switch here any more
            if greenlet in ready:
                ready[ready.index(greenlet)] = None
            raise

    def spawn(self, name: str, run: Callable[..., Any], *args: Any) -> gevent.Greenlet[..., Any]:
        """Start a named greenlet; in the loop's own thread only.  One that fails is logged, never silent."""
        task: gevent.Greenlet[..., Any] = gevent.Greenlet(_reported, name, run, args)
        task.name = f"gnsq_lite-{name}"
        task.start()
        return task

    def kill(self, greenlets: Iterable[Any]) -> None:
        """End *greenlets* of this loop, but for the caller's own and any that is None; returns at once."""
        me = getcurrent()
        for greenlet in greenlets:
            if greenlet is not None and greenlet is not me:
                greenlet.kill(block=False)

    def run(self, run: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run *run* in a greenlet of this loop and return its result; from any thread or greenlet.

        Raises ClosedError where the loop's thread is missing: in a forked child, and when the interpreter exits.
        """
        look_for_fork()
        if self.gone:
            raise ClosedError("this belongs to the parent process; make one in the child")
        if self.is_here() and getcurrent() is not self.hub:
            return run(*args)
        outcome = Completion()

        def work() -> None:
            try:
                value = run(*args)
            except BaseException as error:
                outcome.settle(error=error)
                if not isinstance(error, Exception):
                    raise
            else:
                outcome.settle(value)

        self.call_soon(lambda: self.spawn("call", work))
        return outcome.result(timeout)


def _reported(name: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return run(*args)
    except gevent.GreenletExit:
        return None
    except Exception:
        log.exception("greenlet %s died", name)
        return None


_loops: weakref.WeakKeyDictionary[Hub, Loop] = weakref.WeakKeyDictionary()


def has_loop(hub: Hub) -> bool:
    """Whether another thread may be about to wake *hub*."""
    return hub in _loops


def loop_here(*, keep_alive: bool = False) -> Loop:
    """Return the Loop of the calling thread's hub; makes both where they are missing."""
    hub = get_hub()
    loop = _loops.get(hub)
    if loop is None:
        loop = _loops[hub] = Loop(hub, keep_alive=keep_alive)
    return loop


class Completion:
    """A result that is set once, in any thread, and waited for in any thread or greenlet.

    Waiting blocks nobody else: a greenlet gives way to its hub, a thread without a hub waits on a native lock.
    """

    __slots__ = ("_done", "_error", "_value", "_wakers")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the result; return False, and change nothing, when it was set before."""
        if self._done:
            return False
        self._value, self._error = value, error
        self._done = True  # before the wakers are read: who waits adds its waker first and looks again
        for wake in tuple(self._wakers):
            wake()
        return True

    def done(self) -> bool:
        """Whether the result is there."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the result, at most *timeout* seconds; return whether it came.  ClosedError: Python exits."""
        if self._done:
            return True
        look_for_fork()
        if self._done:
            return True
        parking = Parking()
        self._wakers.append(parking.wake)
        interpreter_exit.waits.add(parking)
        try:
            if not self._done and interpreter_exit.ident is None:
                parking.park(timeout)
        finally:
            interpreter_exit.waits.discard(parking)
            self._wakers.remove(parking.wake)
        if interpreter_exit.ident is not None and not self._done:
            raise interpreter_exit.error()
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        """Wait and return the value, or raise the error.  Raises TimeoutError when none came in time."""
        if not self.wait(timeout):
            raise TimeoutError(f"no result in {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value


def wait_any(completions: Sequence[Completion], timeout: float | None = None) -> bool:
    """Wait until one of *completions* is settled, at most *timeout* seconds; return whether one is.

    Raises ClosedError when Python exits.
    """
    parking = Parking()
    for each in completions:
        each._wakers.append(parking.wake)
    interpreter_exit.waits.add(parking)
    try:
        if interpreter_exit.ident is None and not any(each.done() for each in completions):
            parking.park(timeout)
    finally:
        interpreter_exit.waits.discard(parking)
        for each in completions:
            each._wakers.remove(parking.wake)
    done = any(each.done() for each in completions)
    if interpreter_exit.ident is not None and not done:
        raise interpreter_exit.error()
    return done


class Parking:
    """A place for one wait: ``park()`` returns once ``wake()`` was called, in whatever thread."""

    __slots__ = ("_greenlet", "_lock", "_loop", "_timer", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._lock: Any = None
        self._loop: Loop | None = None
        if get_hub_if_exists() is None:
            self._lock = native_lock()
            self._lock.acquire()
        else:
            self._loop = loop_here()
        self._greenlet: Any = None
        self._timer: Any = None

    def wake(self) -> None:
        """End the wait, or make the one to come return at once.  From any thread, any number of times."""
        if self._woken:
            return
        self._woken = True
        if self._loop is None:
            try:
                self._lock.release()
            except RuntimeError:  # two wakers met
                pass
        else:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.switch()

    def park(self, timeout: float | None = None) -> bool:
        """Wait until woken, at most *timeout* seconds; return whether it was woken."""
        if self._loop is None:
            self._lock.acquire(True, -1 if timeout is None else max(0.0, min(timeout, _LONG)))
            return self._woken
        if getcurrent() is self._loop.hub:
            raise ClosedError("a blocking call was made in the event loop itself")
        if self._woken:
            return True
        # There is always a timer: the inbox alone does not keep the hub from ending the wait with LoopExit.
        self._timer = self._loop.hub.loop.timer(_LONG if timeout is None else max(0.0, min(timeout, _LONG)))
        # The loop may not have run for a long time, and a timer counts from what it last took for now.
        self._timer.start(self._resume, update=True)
        self._greenlet = getcurrent()
        try:
            self._loop.hub.switch()
        finally:
            self._greenlet = None
            self._timer.close()
        return self._woken


def after_io(hub: Any, act: Callable[[], Any]) -> None:
    """Have *act* called in the hub once it has looked after its sockets and timers; never before."""
    timer = hub.loop.timer(0.0)

    def run() -> None:
        timer.close()
        act()

    timer.start(run)


def let_io(hub: Any) -> None:
    """Wait, in a greenlet, until the hub has looked after its sockets and timers."""
    with hub.loop.timer(0.0) as timer:
        hub.wait(timer)
