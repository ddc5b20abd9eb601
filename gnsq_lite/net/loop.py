"""The loop that does the I/O: a gevent hub with a thread-safe inbox.

This module, :mod:`gnsq_lite.net.waiting` and :mod:`gnsq_lite.net.os_threads` are the only ones of net, consume and
publish that use gevent and greenlet; another loop would replace these three.  What they offer to the others:

=======  ==============================================================================================================
run      :meth:`Loop.spawn`, :meth:`Loop.call_soon`, :func:`gnsq_lite.net.waiting.run_in_loop`
wait     :func:`sleep`, :class:`gnsq_lite.net.waiting.Event`, :class:`gnsq_lite.net.waiting.Completion`,
         :meth:`Loop.park`, :meth:`Loop.suspend`, :func:`time_limit`
wake     :meth:`Loop.resume`, :meth:`Loop.resume_soon`, ``Event.set()``, ``Completion.settle()``
timer    :meth:`Loop.timer`
stream   :meth:`Loop.io`, :func:`wait_for_io`, on which :mod:`gnsq_lite.net.stream` is built
=======  ==============================================================================================================

:func:`gnsq_lite.net.io_thread.io_loop` chooses one; :mod:`gnsq_lite.net.waiting` waits for what happens in it.

**Exceptions from signal handlers.**  CPython runs a signal handler between any two bytecodes of the main thread.  In a
monkey-patched process that may be in this library's greenlets and callbacks, and what the handler raises may leave
anything half done.  There is one rule: an unexpected exception in the library's code closes all connections of this
loop, its Readers and Writers begin again with fresh state, and the exception goes on to the program.  It is caught in
three places: where gevent reports an error of a callback or a :class:`Task` (:meth:`Loop._on_error`), and in public
calls from greenlets (:class:`Guard`).  An exception that is thrown into a greenlet that waits, a timeout for one, is
not unexpected: the wait leaves nothing half done.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import gevent
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Hub, get_hub
from gevent.socket import getaddrinfo
from greenlet import getcurrent, greenlet

from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.os_threads import native_ident

log = logging.getLogger("gnsq_lite.net")

# gevent imports these when they are first needed.  A fork in the middle of an import leaves it locked in the child for
# good, so nothing is to be imported while connections are made.
for _lazy in ("loop", "resolver", "threadpool"):
    getattr(gevent.config, _lazy)


#: Returns the greenlet that runs: of the caller's thread.
current_greenlet: Callable[[], Any] = getcurrent
#: Ends a greenlet that is killed; no Exception.
Killed = gevent.GreenletExit
#: Waits so many seconds in a greenlet.
sleep: Callable[[float], None] = gevent.sleep
#: Resolves a name in gevent's thread pool: the loop goes on meanwhile.
resolve: Callable[..., Any] = getaddrinfo
#: Events of :meth:`Loop.io`.
READ, WRITE = 1, 2

#: Seconds one task may take in a turn of the loop before I/O gets its turn.
SLICE = 0.01

#: Seconds after a reset before connections are made again: what fails each time must not fail all the time.
PAUSE = 0.05

#: Waits that end before the loop looks after its sockets again.
_RESUMED_AT_ONCE = 256


#: Exceptions that a public call may raise with everything in order.
_EXPECTED = (NSQError, gevent.GreenletExit, gevent.Timeout)


class Core(Protocol):
    """A Reader's or a Writer's part in a loop."""

    loop: Loop

    def close_for_exit(self, timeout: float) -> int:
        """Close within *timeout* seconds; return how many published messages have no outcome.  In the loop; waits."""

    def reset(self) -> None:
        """Close all connections and begin again with fresh state.  In the loop's thread; does not wait.

        It may have been interrupted before, and may be called again.
        """


class Task(gevent.Greenlet):  # type: ignore[type-arg]
    """A greenlet of the library."""


def in_task() -> bool:
    """Return whether the caller runs in a greenlet of the library, which :meth:`Loop.spawn` started."""
    return isinstance(getcurrent(), Task)


class Guard:
    """``with loop.guard:`` in a public call: an unexpected exception in it resets the loop's Readers and Writers.

    The block must not wait.
    """

    __slots__ = ("_disrupted", "_ident")

    def __init__(self, ident: int, disrupted: Callable[[BaseException], None]) -> None:
        self._ident, self._disrupted = ident, disrupted

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, _EXPECTED) and native_ident() == self._ident:
            self._disrupted(error)


class Loop:
    """A hub and a thread-safe way into it.  Made in the hub's own thread."""

    def __init__(self, hub: Hub, *, keep_alive: bool = False) -> None:
        self.hub = hub
        self.ident = native_ident()
        #: Whether its thread belongs to the parent: in a forked child it does not run any more.
        self.gone = False
        #: Whether Python exits and the library's own thread was stopped.
        self.stopped = False
        #: The greenlet that :meth:`run` was called in.
        self._runner: Any = None
        #: Whether it is the library's own, in a thread of its own, and all other threads are the callers'.
        self.is_shared = keep_alive
        #: Calls a function with arguments in the hub; in this thread.
        run_callback: Any = hub.loop.run_callback
        self.soon: Callable[..., Any] = partial(run_callback, _call, self)
        self.guard = Guard(self.ident, self.disrupted)
        #: What is reset after an unexpected exception, and closed at the exit of Python.
        self.cores: weakref.WeakSet[Core] = weakref.WeakSet()
        #: Called after each reset: they end waits for what the exception has ended.
        self.after_reset: set[Callable[[], object]] = set()
        self._is_disrupted = False
        self._report_other_error: Callable[..., Any] = hub.handle_error
        hub.__dict__["handle_error"] = self._on_error  # an override that gevent documents
        self._inbox: deque[Callable[[], Any]] = deque()
        self._signalled = False
        #: Greenlets whose wait is over, which remove themselves, and how many may run before I/O does.
        self._ready: deque[Any] = deque()
        self._turns = 0
        self._delivering = False
        #: Waits in the caller's greenlet until it is resumed, by whatever.
        self.suspend: Callable[[], Any] = hub.switch
        #: Returns the time at which this turn of the loop began.
        self.now: Callable[[], float] = hub.loop.now
        self._run_callback = run_callback
        self._async = hub.loop.async_(ref=keep_alive)
        self.start(self._async, self._drain)

    def is_here(self) -> bool:
        """Return whether the caller runs in this loop's thread."""
        return native_ident() == self.ident

    def check(self) -> None:
        """Raise ClosedError where the loop's thread does not run: in a forked child, and when Python exits."""
        if self.gone:
            raise ClosedError("this belongs to the parent process; make one in the child")
        if self.stopped:
            raise ClosedError("the interpreter is exiting: its I/O thread has stopped")

    def run(self) -> None:
        """Run the hub until :meth:`stop`; in the first greenlet of the loop's thread."""
        self._runner = getcurrent()
        while not self.stopped:
            try:
                self.hub.switch()
            except BaseException:  # a greenlet of the program's raised SystemExit, for one
                log.exception("the I/O thread goes on")
        self.hub.destroy(destroy_loop=True)

    def stop(self) -> None:
        """Let :meth:`run` return once earlier calls have begun; from another thread."""
        self.stopped = True
        self.call_soon(lambda: self.spawn("stop", self.hub.loop.run_callback, self._runner.switch))

    def call_soon(self, act: Callable[[], Any]) -> None:
        """Call *act* in the hub soon.  From any thread; never blocks; *act* must not block either."""
        if native_ident() == self.ident:
            self.soon(act)
        else:
            self.call_among_many(act)

    def call_among_many(self, act: Callable[[], Any]) -> None:
        """Call *act* in the hub soon, one of many: the hub calls all of them before it polls its sockets again.

        Of those that its own thread gives to gevent it calls as few as 50 where other threads want to run, and then
        waits for its turn among them.
        """
        self._inbox.append(act)
        if not self._signalled:  # set before the send, cleared before the drain: no wake-up is lost
            self._signalled = True
            self._async.send()

    def _drain(self) -> None:
        """Call what is there now.  What comes meanwhile is for the next turn: threads may be quicker than this one."""
        self._signalled = False
        inbox = self._inbox
        for _ in range(len(inbox)):
            inbox.popleft()()

    def start(self, watcher: Any, act: Callable[[], Any], **options: Any) -> None:
        """Start *watcher*, a watcher of this loop, which calls *act* in the hub."""
        watcher.start(_call, self, act, **options)

    def timer(self, seconds: float, act: Callable[[], Any]) -> Any:
        """Return a timer that calls *act* in the hub once, *seconds* from now.

        ``active`` is true until then; ``close()``, which its owner calls in any case, also stops it.
        """
        timer: Any = self.hub.loop.timer(max(0.0, seconds))
        self.start(timer, act, update=True)  # the loop may not have looked at the clock for a long time
        return timer

    def io(self, descriptor: int, events: int) -> Any:
        """Return a watcher of a socket, for :meth:`start`; *events* are READ and WRITE."""
        return self.hub.loop.io(descriptor, events)

    def resume(self, greenlet: Any) -> None:
        """Resume *greenlet* soon, whatever it waits for; in this thread."""
        self._run_callback(greenlet.switch)  # nothing of Python's, in which a signal handler could raise

    def begin(self, run: Callable[[], Any]) -> None:
        """In the hub: run *run* in a new greenlet now; return when it waits or ends.  Cheaper than :meth:`spawn`."""
        greenlet(run, self.hub).switch()

    def resume_soon(self, greenlets: Iterable[Any]) -> None:
        """Resume *greenlets*, which wait in :meth:`park`, soon and in their order; in this thread."""
        if not (self._ready or self._delivering):
            self.soon(self._resume)
        self._ready.extend(greenlets)

    def resume_once(self, greenlet: Any) -> None:
        """Resume *greenlet* soon, unless it is about to be resumed already."""
        if greenlet not in self._ready:
            self.resume_soon((greenlet,))

    def deliver(self, take: Callable[[bytes], bool], data: bytes) -> bool:
        """In the hub: return what *take* does with *data*; if it is true, the greenlets that it resumes have run."""
        self._delivering = True
        try:
            is_taken = take(data)
        finally:
            self._delivering = False
        if self._ready:
            if is_taken:
                self._resume()
            else:
                self.soon(self._resume)
        return is_taken

    def _resume(self) -> None:
        """In the hub: resume greenlets.  Each that parks again resumes the next itself; the last comes back here."""
        ready, self._turns = self._ready, _RESUMED_AT_ONCE
        try:
            while ready and self._turns > 0:
                self._turns -= 1
                if ready[0].dead:
                    ready.popleft()
                else:
                    ready[0].switch()
        finally:
            self._turns = 0
            if ready:
                self.soon(self._resume)

    def park(self, greenlet: Any) -> None:
        """Wait in *greenlet*, the caller's own and of this thread, until :meth:`resume_soon` resumes it.

        It may return early: its caller looks whether the wait is over.
        """
        ready = self._ready
        try:
            if self._turns and ready:
                self._turns -= 1
                ready[0].switch()
            else:
                self.suspend()
        finally:
            if greenlet in ready:  # as its first, where it was resumed
                ready.remove(greenlet)

    def forget(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, the caller's own, which does not wait any longer."""
        if greenlet in self._ready:
            self._ready.remove(greenlet)

    def spawn(self, name: str, run: Callable[..., Any], *args: Any) -> Task:
        """Start a named greenlet; in the loop's own thread only."""
        task = Task(run, *args)
        task.name = f"gnsq_lite-{name}"
        task.start()
        return task

    def kill(self, greenlets: Iterable[Any]) -> None:
        """End *greenlets* of this loop, but for the caller's own and any that is None; returns at once."""
        me = getcurrent()
        for each in greenlets:
            if each is not None and each is not me:
                each.kill(block=False)

    # -- unexpected exceptions

    def _on_error(self, context: Any, kind: Any, error: Any, traceback: Any) -> None:
        """Handle the error of a callback or greenlet, in place of ``hub.handle_error``, where it is the library's."""
        arguments = getattr(context, "args", None)  # of a watcher or a callback
        if isinstance(context, Task) or (arguments and arguments[0] is self):
            self.fail(error)
        else:
            self._report_other_error(context, kind, error, traceback)

    def fail(self, error: BaseException) -> None:
        """Reset the Readers and Writers, and raise *error* in the main greenlet of this thread."""
        self.disrupted(error)
        self.hub.handle_system_error(type(error), error, error.__traceback__)

    def disrupted(self, error: BaseException) -> None:
        """Reset the Readers and Writers: *error* has cut into the library's code."""
        self._is_disrupted = True
        self.soon(self._reset)  # should another exception end the call below
        said = "%s in the library's code: the connections are closed, and made again"
        self.soon(self.spawn, "log", log.warning, said, repr(error))
        self._reset()

    def _reset(self) -> None:
        if not self._is_disrupted:
            return
        for core in list(self.cores):
            core.reset()
        for act in list(self.after_reset):
            self.soon(act)
        if self._ready:
            self.soon(self._resume)
        if self._inbox:
            self._async.send()
        self._is_disrupted = False


def _call(loop: Loop, act: Callable[..., Any], *args: Any) -> None:
    """Call *act* in the hub; by its first argument :meth:`Loop._on_error` tells the library's callbacks from others."""
    act(*args)


_loops: weakref.WeakKeyDictionary[Hub, Loop] = weakref.WeakKeyDictionary()


def destroy_unused_hub() -> None:
    """Destroy the hub of the calling thread, unless it has a Loop: another thread may be about to wake it."""
    hub: Any = get_hub_if_exists()
    if hub is not None and hub not in _loops:
        hub.destroy(destroy_loop=True)


def loop_here(*, keep_alive: bool = False) -> Loop:
    """Return the Loop of the calling thread's hub; makes both where they are missing."""
    hub = get_hub()
    loop = _loops.get(hub)
    if loop is None:
        loop = _loops[hub] = Loop(hub, keep_alive=keep_alive)
    return loop


def after_io(loop: Loop, act: Callable[[], Any]) -> None:
    """Call *act* in the hub after it has polled its sockets and timers; never before."""
    timer = loop.hub.loop.timer(0.0)

    def run() -> None:
        timer.close()
        act()

    loop.start(timer, run)


def let_io() -> None:
    """Wait, in a greenlet, until its hub has looked after its sockets and timers."""
    hub: Any = get_hub()
    with hub.loop.timer(0.0) as timer:
        hub.wait(timer)


def wait_for_io(descriptor: int, events: int, seconds: float) -> bool:
    """Wait, in a greenlet, at most *seconds* until a socket can be read or written; return whether it can."""
    hub: Any = get_hub()
    limit: Any = gevent.Timeout(max(0.0, seconds), False)  # type: ignore[arg-type]
    with hub.loop.io(descriptor, events) as watcher, limit:
        hub.wait(watcher)
        return True
    return False


def time_limit(seconds: float, error: Exception) -> AbstractContextManager[Any]:
    """Return a context manager that raises *error* in the greenlet that is still in its block after *seconds*."""
    return gevent.Timeout(max(0.0, seconds), error)
