"""The orderly end of a Reader (CLOSE-1): no message is lost, and none waits for nsqd's time-out."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.message import Message, send_back
from gnsq_lite.net.io_thread import on_fork
from gnsq_lite.net.loop import Loop, in_task
from gnsq_lite.net.waiting import Completion, Event, in_hub, run_in_loop, wait_or_set

log = logging.getLogger("gnsq_lite.reader")

#: Seconds close() waits for running handlers where it is not told.
CLOSE_TIMEOUT = 30.0
#: Seconds nsqd has, beyond the time limit, to answer CLS, to read what was sent last and to close.
_LINGER = 1.0
#: Seconds without a message after which none is under way: nsqd may be sending one as it answers CLS, and has no use
#: for the REQ of who has said that no more will follow.  Where none came for longer before CLS, none is awaited.
_STRAGGLER, _IDLE = 0.02, 1.0
#: Seconds more that one waits who closes.
_PATIENCE = 5.0


class Closing:
    """The end of one Reader.  In the loop's thread, but for :meth:`close_from_anywhere`.

    Args:
        connections: Returns the connections that are there.
        take_queued: Removes and returns the messages that no handler has begun.
        busy: Returns how many handlers run.
        in_handler: Returns whether the caller is one of this Reader's running handlers.
        refuse: Called at once when the end begins: messages that still come are to go back.
        stop_discovery: Called before CLS is sent: nothing more is to be found.
        end: Called last: it closes what is open, ends all greenlets but the caller's, and settles *ended*.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        ended: Completion,
        *,
        connections: Callable[[], Iterable[Subscribed]],
        take_queued: Callable[[], list[Message]],
        busy: Callable[[], int],
        in_handler: Callable[[], bool],
        refuse: Callable[[], None],
        stop_discovery: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self.loop, self._clock, self.ended = loop, clock, ended
        self._connections, self._take_queued, self._busy = connections, take_queued, busy
        self._in_handler, self._refuse, self._stop_discovery, self._end = in_handler, refuse, stop_discovery, end
        #: Whether it has begun: what still comes goes back.
        self.begun = False
        #: Handlers that still ran when the time was over.
        self.abandoned = 0
        self._close_by = self._asked_at = float("inf")
        self._news = Event()

    def look(self) -> None:
        """Something happened that the one who closes may wait for."""
        self._news.set()

    def close_from_anywhere(self, timeout: float, *, wait: bool) -> None:
        """Close, from any thread or greenlet; with *wait* wait for the end, unless the end waits for the caller."""
        if not wait or in_hub() or in_task() or self._in_handler():
            self.loop.call_soon(lambda: self.close(timeout))
        else:
            run_in_loop(self.loop, self.close, timeout)
            self.ended.wait(timeout + _PATIENCE)

    def close(self, timeout: float) -> None:
        """Begin to stop in order, within *timeout* seconds; returns at once.

        A second call changes nothing but the time left, which it can only shorten: 0 ends at once (CLOSE-1).
        """
        self._close_by = min(self._close_by, self._clock.now() + timeout)
        self._news.set()
        if not self.begun:
            self.begun = True
            self._refuse()
            self.loop.spawn("closing", self._close)

    def _close(self) -> None:
        """CLS to all; what no handler has begun goes back with REQ 0; those that run finish and answer.

        What is unanswered when the time is over goes back too; then the sockets close, after nsqd has read all of it.
        """
        try:
            connections = self._say_cls()
            self._wait_until(lambda: self._is_quiet(connections), lambda: self._close_by)
            # What nsqd sent before it read CLS still comes, and goes back, even where no time was given.
            lingers = self._clock.now() + _LINGER
            self._wait_until(lambda: all(c.close_waited or self._is_gone(c) for c in connections), lambda: lingers)
            left = self.abandoned = self._busy()
            if left:
                log.warning("%d handlers still run when the time is over; their messages go back to nsqd", left)
            self._give_back(connections)
            # An answer that a handler's thread gave just now is on its way here.
            self._wait_until(lambda: all(map(self._is_settled, connections)), lambda: lingers)
            for connection in connections:
                connection.shut_down()
            self._wait_until(lambda: not self.loop.has_queued_calls(), lambda: lingers)
            self._wait_until(lambda: all(self._is_gone(c) for c in connections), lambda: lingers)
        finally:
            self._end()

    def _say_cls(self) -> list[Subscribed]:
        """Ask for no more messages, and send back what no handler has begun; return all connections."""
        self._stop_discovery()
        connections = list(self._connections())
        self._asked_at = self._clock.now()
        for connection in connections:
            connection.send_close(self.look)
            connection.give_back()
        send_back(self._take_queued())
        return connections

    def _give_back(self, connections: list[Subscribed]) -> None:
        for connection in connections:
            send_back(connection.in_flight.unanswered())

    def _is_quiet(self, connections: list[Subscribed]) -> bool:
        if self._busy():
            return False
        return all(self._is_gone(c) or (c.close_waited and not c.in_flight.count) for c in connections)

    def _is_settled(self, connection: Subscribed) -> bool:
        """Whether nothing of it is unanswered, nor is a message on its way here."""
        if not connection.is_open():
            return True
        if connection.in_flight.count:
            return False
        is_idle = connection.in_flight.received_at < self._asked_at - _IDLE
        return is_idle or self._clock.now() - connection.read_at >= _STRAGGLER

    def _is_gone(self, connection: Subscribed) -> bool:
        """Whether nothing more is to be had of it: it is closed, or owed nothing and silent since it was sent CLS."""
        if not connection.is_open():
            return True
        if connection.in_flight.count or connection.unsent() or connection.read_at > self._asked_at:
            return False
        return self._clock.now() >= self._asked_at + _LINGER

    def _wait_until(self, done: Callable[[], bool], deadline: Callable[[], float]) -> None:
        while not done():
            left = deadline() - self._clock.now()
            if left <= 0:
                return
            self._news.clear()
            wait_or_set(self._news, min(left, _STRAGGLER))


#: What a signal drains, by id; a copy of the references is one step, which no other thread can come between.
_drained: weakref.WeakValueDictionary[int, Closing] = weakref.WeakValueDictionary()


def drain_on_signals(closing: Closing) -> None:
    """Have its Reader closed by :func:`close_all`, whichever Reader of the process it is that waits; held weakly."""
    _drained[id(closing)] = closing


def close_all(closing: Closing, timeout: float = CLOSE_TIMEOUT) -> None:
    """Close that Reader and what signals drain, all in the same *timeout* seconds; wait for their ends."""
    readers = {closing, *(one for one in (ref() for ref in _drained.valuerefs()) if one is not None)}
    open_ones = [one for one in readers if not (one.ended.done() or one.loop.stopped or one.loop.gone)]
    for one in open_ones:
        one.loop.call_soon(partial(one.close, timeout))
    ends = SYSTEM_CLOCK.now() + timeout + _PATIENCE
    for one in open_ones:
        one.ended.wait(max(0.0, ends - SYSTEM_CLOCK.now()))


on_fork(_drained.clear)
