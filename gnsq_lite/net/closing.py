"""The orderly end of a Reader (CLOSE-1): no message is lost, and none waits for nsqd's time-out."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gevent._hub_local import get_hub_if_exists
from greenlet import getcurrent

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.forks import on_fork
from gnsq_lite.net.ordered import OrderedConnection
from gnsq_lite.net.subscribed import Subscribed
from gnsq_lite.net.waiting import take_queued

if TYPE_CHECKING:
    from gnsq_lite.net.consumer import Consumer

log = logging.getLogger("gnsq_lite.reader")

#: Seconds nsqd has, beyond the time limit, to answer CLS, to read what was sent last and to close.
_LINGER = 1.0
#: Seconds more that one waits who closes.
_PATIENCE = 5.0

#: What a signal drains, by id; a copy of the values is one step, which no other thread can come between.
_drained: weakref.WeakValueDictionary[int, Consumer] = weakref.WeakValueDictionary()


def drain_on_signals(core: Consumer) -> None:
    """Have *core* closed by :func:`close_all`, whichever Reader of the process it is that waits; held weakly."""
    _drained[id(core)] = core


def close_all(core: Consumer, timeout: float) -> None:
    """Close *core* and what signals drain, all in the same *timeout* seconds; wait for their ends."""
    cores = {core, *(one for one in (ref() for ref in _drained.valuerefs()) if one is not None)}
    open_ones = [one for one in cores if not (one.ended.done() or one.loop.stopped or one.loop.gone)]
    for one in open_ones:
        one.loop.call_soon(partial(close, one, timeout))
    ends = SYSTEM_CLOCK.now() + timeout + _PATIENCE
    for one in open_ones:
        one.ended.wait(max(0.0, ends - SYSTEM_CLOCK.now()))


on_fork(_drained.clear)


def close_and_wait(core: Consumer, timeout: float) -> None:
    """Close; from any thread or greenlet.  In a hub, where patched processes run signal handlers, without a wait."""
    if getcurrent() is get_hub_if_exists():
        core.loop.call_soon(lambda: close(core, timeout))
    else:
        core.loop.run(close, core, timeout)
        core.ended.wait(timeout + _PATIENCE)


def close(core: Consumer, timeout: float) -> None:
    """Begin to stop in order, within *timeout* seconds; returns at once; in the loop's thread.

    A second call changes nothing but the time left, which it can only shorten: 0 ends at once (CLOSE-1).
    """
    core.close_by = min(core.close_by, core.clock.now() + timeout)
    core.quiet.set()
    if not core.closing:
        core.closing = True
        core.loop.spawn("closing", _close, core)


def _close(core: Consumer) -> None:
    """CLS to all; what no handler has begun goes back with REQ 0; those that run finish and answer.

    What is unanswered when the time is over goes back too; then the sockets close, after nsqd has read all of it.
    """
    try:
        if core.discovery is not None:
            core.discovery.stop()
        connections = list(core.connections.values())
        for connection in connections:
            connection.send_close()
        core.send_back(take_queued(core.pool, core.batches))
        _wait_until(core, lambda: _is_quiet(core, connections), lambda: core.close_by)
        # What nsqd sent before it read CLS is still to come, and goes back when it does, even where no time was given.
        lingers = core.clock.now() + _LINGER
        _wait_until(core, lambda: all(c.close_waited or not c.is_open() for c in connections), lambda: lingers)
        left = core.abandoned = core.pool.busy()
        if left:
            log.warning("%d handlers still run when the time is over; their messages go back to nsqd", left)
        for connection in connections:
            if isinstance(connection, OrderedConnection):
                connection.give_back()
            core.send_back(connection.in_flight.unanswered())
        # An answer that a handler's thread gave just now is on its way here.
        _wait_until(core, lambda: not any(c.is_open() and c.in_flight for c in connections), lambda: lingers)
        for connection in connections:
            connection.shut_down()
        _wait_until(core, lambda: not core.loop.is_telling(), lambda: lingers)
        _wait_until(core, lambda: not any(c.is_open() for c in connections), lambda: lingers)
    finally:
        core.stop_all()
        core.ended.settle(error=core.error)


def leave(core: Consumer) -> Callable[[], str]:
    """Give back what is here, as the interpreter ends; return what says how much has not gone.  Ends nothing else."""
    core.closing = True  # what still comes goes back as well
    if core.discovery is not None:
        core.discovery.stop()
    connections = [connection for connection in core.connections.values() if connection.is_open()]
    for connection in connections:
        connection.send_close()
    core.send_back(take_queued(core.pool, core.batches))
    for connection in connections:
        if isinstance(connection, OrderedConnection):
            connection.give_back()
        core.send_back(connection.in_flight.unanswered())
    shut: set[Subscribed] = set()
    until = core.clock.now() + _LINGER

    def left() -> str:
        late = core.clock.now() > until
        for connection in connections:
            if (connection.close_waited or late) and not connection.in_flight and connection not in shut:
                shut.add(connection)
                connection.shut_down()  # nsqd reads all of it, and closes
        count = sum(len(c.in_flight) for c in connections if c.is_open())
        if count or (not late and any(connection.is_open() for connection in connections)):
            return f"messages that go back: {count}"
        return ""

    return left


def _is_quiet(core: Consumer, connections: list[Subscribed]) -> bool:
    if core.pool.busy():
        return False
    return all(not c.is_open() or (c.close_waited and not c.in_flight) for c in connections)


def _wait_until(core: Consumer, done: Callable[[], bool], deadline: Callable[[], float]) -> None:
    while not done():
        left = deadline() - core.clock.now()
        if left <= 0:
            return
        core.quiet.clear()
        core.quiet.wait(min(left, 0.05))
