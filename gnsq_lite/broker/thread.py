"""The broker's native thread, which has its own gevent hub.

The thread is native even in a monkey-patched process.  So a handler that blocks the main hub does not block the broker.
For example, the broker can still close the connection of the blocked client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
import gevent.event
from gevent.monkey import get_original

from gnsq_lite.errors import ClosedError

_T = TypeVar("_T")
_start_thread: Callable[..., int] = get_original("_thread", "start_new_thread")
_new_lock: Callable[[], Any] = get_original("_thread", "allocate_lock")
_new_rlock: Callable[[], Any] = get_original("_thread", "RLock")
_thread_id: Callable[[], int] = get_original("_thread", "get_ident")


class _Call:
    """A function to run in the loop's thread, and its result or exception."""

    __slots__ = ("done", "error", "function", "value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = _new_lock()
        self.done.acquire()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as error:  # call() raises this error in the caller's thread
            self.error = error
        finally:
            self.done.release()


class LoopThread:
    """A native thread with a gevent hub, which runs functions for other threads."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()
        self._guard = _new_rlock()  # reentrant: a signal handler that interrupts call() may use call() too
        self._wake: Any = None
        self._stopping: gevent.event.Event | None = None
        self._ended: Any = None
        self._id: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._id is not None

    def start(self) -> None:
        """Start the thread, and return when its hub runs.  Raises ClosedError if the hub does not start."""
        started, self._ended = _new_lock(), _new_lock()
        started.acquire()
        self._ended.acquire()
        _start_thread(self._run, (started,))
        started.acquire()
        if not self.alive:
            raise ClosedError("the broker's thread did not start")

    def _run(self, started: Any) -> None:
        try:
            hub = gevent.get_hub()
            self._stopping = gevent.event.Event()
            self._wake = hub.loop.async_()
            self._wake.start(self._take_calls)
            self._id = _thread_id()
            started.release()
            self._stopping.wait()
            self._close(hub)
        finally:
            self._ended.release()
            if started.locked():
                started.release()

    def _close(self, hub: Any) -> None:
        with self._guard:
            self._id = None
            left, self._calls = self._calls, deque()
        for call in left:
            call.error = ClosedError("the broker has stopped")
            call.done.release()
        self._wake.stop()
        self._wake.close()
        hub.destroy(destroy_loop=True)

    def _take_calls(self) -> None:
        while self._calls:
            gevent.spawn(self._calls.popleft().run)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run *function* in a new greenlet of the broker's thread, and return its result or raise its exception.

        Thread-safe.  The call blocks the calling thread.  A call from the broker's thread runs *function* directly.
        Raises ClosedError if the broker's thread does not run.
        """
        if self._id == _thread_id():
            return function()
        call = _Call(function)
        with self._guard:
            if self._id is None:
                raise ClosedError("the broker is not running")
            self._calls.append(call)
            self._wake.send()
        call.done.acquire()
        if call.error is not None:
            raise call.error
        value: _T = call.value
        return value

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""

        def end() -> None:
            if self._stopping is not None:
                self._stopping.set()

        if self._id is not None:
            self.call(end)
        self._ended.acquire()
        self._ended.release()
