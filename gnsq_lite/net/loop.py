"""The loop that does the I/O: a gevent hub with a thread-safe inbox.

:func:`gnsq_lite.net.io_thread.io_loop` chooses one; :mod:`gnsq_lite.net.waiting` waits for what happens in it.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.hub import Hub, get_hub
from greenlet import getcurrent

from gnsq_lite.errors import ClosedError
from gnsq_lite.net.os_threads import native_ident

log = logging.getLogger("gnsq_lite.net")

# gevent imports these when they are first needed.  A fork in the middle of an import leaves it locked in the child for
# good, so nothing is to be imported while connections are made.
for _lazy in ("loop", "resolver", "threadpool"):
    getattr(gevent.config, _lazy)


#: Seconds one task may take in a turn of the loop before I/O gets its turn.
SLICE = 0.01

#: Seconds after which a greenlet that failed goes on.
_PAUSE = 0.05

#: Waits that end before the loop looks after its sockets again.
_RESUMED_AT_ONCE = 256


#: What a greenlet in ``park()`` is resumed with; any other switch to it comes from elsewhere.
RESUMED = object()


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
        self.soon: Callable[..., Any] = hub.loop.run_callback
        self._inbox: deque[Callable[[], Any]] = deque()
        self._signalled = False
        #: Greenlets whose wait is over, None for each that was ended otherwise; how many may run before I/O does.
        self._ready: deque[Any] = deque()
        self._turns = 0
        self._delivering = False
        self._switch_to_hub = hub.switch
        #: What :meth:`queue_call` was given, and whether a greenlet calls it.
        self._queued_calls: deque[Callable[[], None]] = deque()
        self._runs_queued_calls = False
        self._async = hub.loop.async_(ref=keep_alive)
        self._async.start(self._drain)

    def is_here(self) -> bool:
        """Whether the caller runs in this loop's thread."""
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
        """Have :meth:`run` return once earlier calls have begun; from another thread."""
        self.stopped = True
        self.call_soon(lambda: self.spawn("stop", self.soon, self._runner.switch))

    def call_soon(self, act: Callable[[], Any]) -> None:
        """Have *act* called in the hub.  From any thread; never blocks; *act* must not block either."""
        if native_ident() == self.ident:
            self.soon(act)
        else:
            self.call_among_many(act)

    def call_among_many(self, act: Callable[[], Any]) -> None:
        """Do the same with one of many: the hub calls them all before it looks after its sockets again.

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
        try:
            for _ in range(len(inbox)):
                act = inbox.popleft()
                try:
                    act()
                except Exception:
                    log.exception("a callback in the I/O loop failed")
        except BaseException:  # from a signal handler; what is left has nobody else who calls it
            self._async.send()
            raise

    def queue_call(self, act: Callable[[], None]) -> None:
        """Have *act*, which may wait and raises nothing, called in a greenlet, in order; from any thread."""
        self._queued_calls.append(act)
        self.call_soon(self._begin_queued_calls)

    def has_queued_calls(self) -> bool:
        """Whether a call of :meth:`queue_call` has not returned yet."""
        return self._runs_queued_calls or bool(self._queued_calls)

    def _begin_queued_calls(self) -> None:
        if not self._runs_queued_calls:
            self.spawn("queued calls", self._run_queued_calls)
            self._runs_queued_calls = True

    def _run_queued_calls(self) -> None:
        try:
            while self._queued_calls:
                self._queued_calls.popleft()()
        finally:
            self._runs_queued_calls = False
            if self._queued_calls:  # interrupted: another goes on, and there is never more than one
                self._begin_queued_calls()

    def look_after(self) -> None:
        """Call again what a signal handler's exception may have ended; about once a second, by whoever uses it."""
        if self._ready:
            self.soon(self._resume)
        if self._inbox:
            self._async.send()

    def resume_soon(self, greenlets: Iterable[Any]) -> None:
        """Have *greenlets*, which wait in :meth:`park`, resumed in their order; in this thread."""
        if not (self._ready or self._delivering):
            self.soon(self._resume)
        self._ready.extend(greenlets)

    def deliver(self, take: Callable[[bytes], bool], data: bytes) -> bool:
        """In the hub: return what *take* does with *data*; where it is true, those whom it had resumed have run."""
        is_taken = False
        self._delivering = True
        try:
            is_taken = take(data)
        finally:
            self._delivering = False
            if self._ready and not is_taken:
                self.soon(self._resume)
        if self._ready and is_taken:
            self._resume()
        return is_taken

    def is_due(self, greenlet: Any) -> bool:
        """Whether *greenlet* is to be resumed already."""
        return greenlet in self._ready

    def _resume(self) -> None:
        """In the hub: resume who is ready.  Each that parks again resumes the next itself; the last comes back here."""
        ready, self._turns = self._ready, _RESUMED_AT_ONCE
        try:
            while ready and self._turns > 0:
                self._turns -= 1
                greenlet = ready[0]
                del ready[0]  # not popleft(), in whose call a signal handler that raises would lose it
                if greenlet is not None:
                    greenlet.switch(RESUMED)
        finally:  # a bare greenlet that dies of an exception raises it here
            self._turns = 0
            if ready:
                self.soon(self._resume)

    def park(self, greenlet: Any, outcome: Any = None, body: bytes = b"") -> bool:
        """Wait in *greenlet*, the caller's own and of this thread, until it is resumed by :meth:`resume_soon`.

        An *outcome* that may be there already is told of its greenlet with no call between the look at it and the
        switch: a signal handler that waits in between would be resumed in its place.  One of many gets the *body*
        of that greenlet, unless it is closed; then this returns False, and at once.
        """
        ready = self._ready
        try:
            while True:
                following = None
                if self._turns and ready:
                    self._turns -= 1
                    following = ready[0]
                    del ready[0]
                if outcome is not None:
                    if body:
                        over = outcome.closed
                    else:
                        outcome._greenlet = greenlet
                        over = outcome._done
                    if over:
                        if following is not None:
                            ready.appendleft(following)
                        return not body
                    if body:
                        outcome.joined += (greenlet, body)  # not extend(), which is a call
                        outcome = None  # it has it, whoever else switches here
                if (self._switch_to_hub() if following is None else following.switch(RESUMED)) is RESUMED:
                    return True
        except BaseException:  # killed, or timed out: nobody may switch here any more
            if greenlet in ready:
                ready[ready.index(greenlet)] = None
            raise

    def spawn(self, name: str, run: Callable[..., Any], *args: Any) -> gevent.Greenlet[..., Any]:
        """Start a named greenlet; in the loop's own thread only.  One that fails is logged, never silent."""
        task: gevent.Greenlet[..., Any] = gevent.Greenlet(_reported, name, run, args)
        task.name = f"gnsq_lite-{name}"
        task.start()
        return task

    def every(self, seconds: float, act: Callable[[], Any]) -> None:
        """Call *act*, which must not block, each *seconds*, as long as the loop runs; in its own thread only."""

        def run() -> None:
            while True:
                act()
                gevent.sleep(seconds)

        self.spawn("timer", lasting, run)

    def kill(self, greenlets: Iterable[Any]) -> None:
        """End *greenlets* of this loop, but for the caller's own and any that is None; returns at once."""
        me = getcurrent()
        for greenlet in greenlets:
            if greenlet is not None and greenlet is not me:
                greenlet.kill(block=False)


def lasting(run: Callable[..., Any], *args: Any) -> None:
    """Call *run*, and again whatever is raised in it, until it returns or its greenlet is killed.

    In a monkey-patched process a signal handler comes in wherever the main thread is.  What it raises there, as Ctrl-C
    does, is the main greenlet's, and would end one that nobody starts again.
    """
    raised: BaseException | None = None
    while True:
        try:
            if raised is not None:
                told, raised = raised, None
                pass_on(told)
                del told  # and the frames of its traceback
                gevent.sleep(_PAUSE)
            run(*args)
            return
        except gevent.GreenletExit:
            raise
        except BaseException as error:
            raised = error


def surely(act: Callable[[], Any]) -> None:
    """Call *act*, and once more where a signal handler raises in it, before that is raised on."""
    try:
        act()
    except BaseException:
        act()
        raise


def pass_on(error: BaseException) -> None:
    """Have *error*, raised in the caller, a greenlet of the loop, logged; what ends a program goes to the main one."""
    if isinstance(error, Exception):
        log.error("greenlet %s goes on", getattr(getcurrent(), "name", ""), exc_info=error)
    else:
        hub = get_hub()
        hub.loop.run_callback(hub.handle_error, getcurrent(), type(error), error, error.__traceback__)


def in_task() -> bool:
    """Return whether the caller runs in a greenlet of the library, which :meth:`Loop.spawn` started."""
    return getattr(getcurrent(), "_run", None) is _reported


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
