"""Defines the loop that does the I/O: a gevent hub to which any thread can pass calls.

Of the packages net, consume and publish, only this module, :mod:`gnsq_lite.net.waiting` and
:mod:`gnsq_lite.net.os_threads` use gevent and greenlet.  The other modules use these functions:

=======  ==============================================================================================================
run      :meth:`Loop.spawn`, :meth:`Loop.call_soon`, :func:`gnsq_lite.net.waiting.run_in_loop`
wait     :func:`sleep`, :class:`gnsq_lite.net.waiting.Event`, :class:`gnsq_lite.net.waiting.Completion`,
         :meth:`Loop.park`, :meth:`Loop.suspend`, :func:`time_limit`
wake     :meth:`Loop.resume_soon`, ``Event.set()``, ``Completion.settle()``
timer    :meth:`Loop.timer`
stream   :meth:`Loop.io`, :func:`wait_for_io`; :mod:`gnsq_lite.net.stream` uses them
=======  ==============================================================================================================

:func:`gnsq_lite.net.io_thread.io_loop` chooses the loop of a Reader or Writer.

**Exceptions from signal handlers.**  CPython runs a signal handler between any two bytecodes of the main thread.  In a
monkey-patched process the interrupted code may be a greenlet or callback of this library, and an exception of the
signal handler may leave the library's state inconsistent.  There is one rule: an unexpected exception in the library's
code closes all connections of the loop, resets the loop's Readers and Writers, and then propagates to the program.  The
pauses before the new connections grow while such exceptions continue (:class:`gnsq_lite.policy.reconnect.ResetPauses`).
:meth:`Loop._on_error` catches errors of callbacks and Tasks.  :class:`Guard` catches errors in public calls.
Exceptions that are thrown into a waiting greenlet, such as gevent.Timeout, need no reset.
"""

from __future__ import annotations

import logging
import sys
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
from greenlet import __version__ as greenlet_version
from greenlet import getcurrent, greenlet

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.os_threads import WeakGroup, check_versions, has_gil, make_hub, native_ident
from gnsq_lite.policy.reconnect import ResetPauses

log = logging.getLogger("gnsq_lite.net")

# gevent imports these modules on first use.  After a fork during an import, the import lock would stay locked in the
# child.  Therefore nothing may be imported while connections are made.
for _lazy in ("loop", "resolver", "threadpool"):
    getattr(gevent.config, _lazy)
check_versions(has_gil(), sys.version_info[:3], greenlet_version)  # gevent's loop may have enabled the GIL


#: Returns the current greenlet of the calling thread.
current_greenlet: Callable[[], Any] = getcurrent
#: Raised in a greenlet that is killed.  It is not a subclass of Exception.
Killed = gevent.GreenletExit
#: Suspends the current greenlet for a number of seconds.
sleep: Callable[[float], None] = gevent.sleep
#: Resolves a host name with gevent's resolver, without blocking the loop.
resolve: Callable[..., Any] = getaddrinfo
#: Events of :meth:`Loop.io`.
READ, WRITE = 1, 2

#: Seconds that a greenlet may run before it must let the loop do I/O.
SLICE = 0.01
#: Maximum calls of :meth:`Loop.call_behind` before the loop polls its sockets again.
_BEHIND_AT_ONCE = 1000

#: Exceptions that a public call may raise without a reset.
_EXPECTED = (NSQError, gevent.GreenletExit, gevent.Timeout)


class Core(Protocol):
    """The part of a Reader or Writer that runs in a loop."""

    loop: Loop

    def close_for_exit(self, timeout: float) -> int:
        """Close within *timeout* seconds, and return the number of publishes without outcome.  Blocks the greenlet."""

    def reset(self) -> None:
        """Close all connections and start again with new state.  Does not block.  Called in the loop's thread.

        The method must also work after an exception of a signal handler has interrupted an earlier call.
        """


class Task(gevent.Greenlet):  # type: ignore[type-arg]
    """A greenlet that the library started."""


class NoPublishTask(Task):
    """A greenlet that connects a Writer to an nsqd, or finds nsqds.  A blocking publish here raises NotSent.

    The publish could wait for this greenlet.  The garbage collector may run a finalizer that publishes here, and a
    Writer's ``address_map`` runs here.
    """


def in_task() -> bool:
    """Return whether the current greenlet is a :class:`Task`."""
    return isinstance(getcurrent(), Task)


class Guard:
    """Context manager for public calls, used as ``with loop.guard:``.  The block must not wait.

    An unexpected exception in the block, in the loop's thread, resets the loop's Readers and Writers.
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
    """A gevent hub to which any thread can pass calls.  Make the object in the hub's thread."""

    def __init__(self, hub: Hub, *, keep_alive: bool = False) -> None:
        self.hub = hub
        self.ident = native_ident()
        #: Whether this is a forked child, in which the loop's thread does not exist.
        self.gone = False
        #: Whether the I/O thread was stopped because Python exits.
        self.stopped = False
        #: The greenlet that called :meth:`run`.
        self._runner: Any = None
        #: Whether this loop runs in the library's I/O thread, which all Readers and Writers of the process share.
        self.is_shared = keep_alive
        #: Schedules ``act(*args)`` in the hub.  Must be called in the loop's thread.
        run_callback: Any = hub.loop.run_callback
        self.soon: Callable[..., Any] = partial(run_callback, _call, self)
        self.guard = Guard(self.ident, self.disrupted)
        #: Readers and Writers to reset after an unexpected exception and to close when Python exits.
        self.cores = WeakGroup()
        self._pauses = ResetPauses(SYSTEM_CLOCK)
        self._report_other_error: Callable[..., Any] = hub.handle_error
        hub.__dict__["handle_error"] = self._on_error  # an override that gevent documents
        self._inbox: deque[Callable[[], Any]] = deque()
        self._behind: deque[Callable[[], Any]] = deque()
        #: Greenlets to resume.  Each greenlet removes itself.
        self._ready: deque[Any] = deque()
        #: Suspends the current greenlet until other code switches to it, and returns the argument of the switch.
        self.suspend: Callable[[], Any] = hub.switch
        #: Returns the start time of the current loop iteration.
        self.now: Callable[[], float] = hub.loop.now
        self._async = hub.loop.async_(ref=keep_alive)
        self.start(self._async, self._drain)

    def is_here(self) -> bool:
        """Return whether the caller runs in this loop's thread."""
        return native_ident() == self.ident

    def check(self) -> None:
        """Raise ClosedError if the loop's thread does not run, in a forked child or because Python exits."""
        if self.gone:
            raise ClosedError("this Reader or Writer belongs to the parent process; make a new one in the child")
        if self.stopped:
            raise ClosedError("the interpreter is exiting: its I/O thread has stopped")

    def run(self) -> None:
        """Run the hub until a call of :meth:`stop`.  Call this method in the first greenlet of the loop's thread."""
        self._runner = getcurrent()
        while not self.stopped:
            try:
                self.hub.switch()
            except BaseException:  # for example SystemExit from a greenlet of the program
                log.exception("an exception was raised in the I/O thread, which continues")
        self.hub.destroy(destroy_loop=True)

    def stop(self) -> None:
        """Make :meth:`run` return after all earlier calls have started.  Call this method in another thread."""
        self.stopped = True
        self.call_soon(lambda: self.soon(self._runner.switch))

    def call_soon(self, act: Callable[[], Any]) -> None:
        """Schedule *act*, which must not block, in the hub.  Thread-safe.  Never blocks."""
        if native_ident() == self.ident:
            self.soon(act)
            return
        self._inbox.append(act)
        self._async.send()

    def call_behind(self, act: Callable[[], Any]) -> None:
        """Schedule *act* in the hub, after the calls of :meth:`call_soon`.  Thread-safe.  Never blocks.

        Threads may schedule many such calls, for example publishes.  At most 1,000 run between two polls of sockets.
        """
        self._behind.append(act)
        self._async.send()

    def release_before_poll(self, lock: Any) -> None:
        """Release *lock*, on which another thread waits, before the next poll.  Call this method in the loop's thread.

        The poll releases the GIL.  If the lock were released earlier, the thread would wait for the GIL as well.  The
        hub of a monkey-patched process runs the program's greenlets too.  There the lock is released at once.
        """
        if self.is_shared:
            self.soon(lock.release)
        else:
            lock.release()

    def _drain(self) -> None:
        """Run the calls queued so far.  Calls that threads queue meanwhile run in the next iteration."""
        inbox, behind = self._inbox, self._behind
        for _ in range(len(inbox)):
            inbox.popleft()()
        for _ in range(min(len(behind), _BEHIND_AT_ONCE)):
            behind.popleft()()
        if behind:
            self._async.send()

    def start(self, watcher: Any, act: Callable[[], Any], **options: Any) -> None:
        """Start *watcher*, which then calls *act* in the hub.  The watcher must belong to this loop."""
        watcher.start(_call, self, act, **options)

    def timer(self, seconds: float, act: Callable[[], Any]) -> Any:
        """Call *act* in the hub after *seconds* and after the next poll of sockets, and return the timer.

        The timer closes itself before the call.  The caller may close the timer at any time, also twice.
        """
        timer: Any = self.hub.loop.timer(max(0.0, seconds))

        def run() -> None:
            timer.close()
            act()

        self.start(timer, run, update=True)  # the loop may not have read the clock for a long time
        return timer

    def io(self, descriptor: int, events: int) -> Any:
        """Return a watcher of a socket, for :meth:`start`.  *events* is READ, WRITE or both."""
        return self.hub.loop.io(descriptor, events)

    def begin(self, run: Callable[[], Any]) -> None:
        """Call *run* in a new greenlet, and return when the greenlet waits or ends.  Call this method in the hub.

        This costs less than :meth:`spawn`.
        """
        greenlet(run, self.hub).switch()

    def resume_soon(self, greenlets: Iterable[Any]) -> None:
        """Resume *greenlets*, which wait in :meth:`park`, in order and soon.  Call this in the loop's thread."""
        if not self._ready:
            self.soon(self._resume)
        self._ready.extend(greenlets)

    def _resume(self) -> None:
        """Resume the ready greenlets, in the hub.  A greenlet that parks again switches directly to the next."""
        ready = self._ready
        try:
            while ready:
                if ready[0].dead:
                    ready.popleft()
                else:
                    ready[0].switch()
        finally:  # a greenlet that is no Task may raise in the hub
            if ready:
                self.soon(self._resume)

    def park(self, greenlet: Any) -> None:
        """Suspend *greenlet*, the current greenlet, until :meth:`resume_soon` resumes it.

        The method may return earlier, so the caller must check its condition again.
        """
        ready = self._ready
        try:
            if ready:
                ready[0].switch()
            else:
                self.suspend()
        finally:
            if greenlet in ready:  # a greenlet that was resumed is the first of the queue
                ready.remove(greenlet)

    def spawn(self, name: str, run: Callable[..., Any], *args: Any, kind: type[Task] = Task) -> Task:
        """Call *run* in a new greenlet, and return the greenlet.  Call this method in the loop's thread."""
        task = kind(run, *args)
        task.name = f"gnsq_lite-{name}"
        task.start()
        return task

    def kill(self, greenlets: Iterable[Any]) -> None:
        """Kill *greenlets* without waiting, except None and the current greenlet."""
        me = getcurrent()
        for each in greenlets:
            if each is not None and each is not me:
                each.kill(block=False)

    # -- unexpected exceptions

    def _on_error(self, context: Any, kind: Any, error: Any, traceback: Any) -> None:
        """Handle an error of a callback or greenlet of the library.  Pass all other errors on to gevent."""
        arguments = getattr(context, "args", None)  # of a watcher or a callback, whose _call() has not begun to catch
        if context is self or isinstance(context, Task) or (arguments and arguments[0] is self):
            self.fail(error)
        else:
            self._report_other_error(context, kind, error, traceback)

    def fail(self, error: BaseException) -> None:
        """Reset the Readers and Writers, and raise *error* in the main greenlet of this thread."""
        self.disrupted(error)
        self.hub.handle_system_error(type(error), error, error.__traceback__)

    def disrupted(self, error: BaseException) -> None:
        """Reset the Readers and Writers after *error* has interrupted the library's code."""
        said = "%s interrupted the library's code: all Readers and Writers of this thread reconnect"
        self.soon(self.spawn, "log", log.warning, said, repr(error))
        self._pauses.begin()
        for core in self.cores.members():
            core.reset()
        if self._ready:
            self.soon(self._resume)
        self._async.send()

    def wait_after_reset(self) -> None:
        """Wait in a greenlet until Readers and Writers may connect after a reset.

        If an error follows each reset, the growing pauses prevent a busy loop.
        """
        sleep(self._pauses.left())


def _call(loop: Loop, act: Callable[..., Any], *args: Any) -> None:
    """Call *act* in the hub.  Pass an error to :meth:`Loop._on_error`, which knows it by *loop* as the library's."""
    try:
        act(*args)
    except Killed:  # the hub is destroyed
        raise
    except BaseException as error:  # here, because a timer that has closed itself has no arguments any more
        loop.hub.handle_error(loop, type(error), error, error.__traceback__)


_loops: weakref.WeakKeyDictionary[Hub, Loop] = weakref.WeakKeyDictionary()
_all_loops = WeakGroup()


def all_loops() -> list[Loop]:
    """Return all loops of the process."""
    return _all_loops.members()


def destroy_unused_hub() -> None:
    """Destroy the hub of the calling thread, unless the hub has a Loop, which other threads may wake at any time."""
    hub: Any = get_hub_if_exists()
    if hub is not None and hub not in _loops:
        hub.destroy(destroy_loop=True)


def loop_here(*, keep_alive: bool = False) -> Loop:
    """Return the Loop of the calling thread.  Make a missing hub and a missing Loop.  Raises NSQError."""
    hub = make_hub()
    loop = _loops.get(hub)
    if loop is None:
        loop = _loops[hub] = Loop(hub, keep_alive=keep_alive)
        _all_loops.add(loop)
    return loop


def let_io() -> None:
    """Suspend the current greenlet until the hub has polled sockets and timers."""
    hub: Any = get_hub()
    with hub.loop.timer(0.0) as timer:
        hub.wait(timer)


def wait_for_io(descriptor: int, events: int, seconds: float) -> bool:
    """Wait at most *seconds* in a greenlet until a socket is readable or writable, and return whether it is."""
    hub: Any = get_hub()
    limit: Any = gevent.Timeout(max(0.0, seconds), False)  # type: ignore[arg-type]
    with hub.loop.io(descriptor, events) as watcher, limit:
        hub.wait(watcher)
        return True
    return False


def time_limit(seconds: float, error: Exception) -> AbstractContextManager[Any]:
    """Return a context manager that raises *error* if its block still waits, in a greenlet, after *seconds*."""
    return gevent.Timeout(max(0.0, seconds), error)
