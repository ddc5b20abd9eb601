"""The broker as a program: runs until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from gevent.monkey import get_original

from gnsq_lite.broker.embedded import Broker

_new_lock: Callable[[], Any] = get_original("_thread", "allocate_lock")


def run_forever(broker: Broker, started: Callable[[Broker], None] = lambda broker: None) -> None:
    """Start *broker*, call *started* with it, wait for SIGINT or SIGTERM, stop it.  Main thread only.

    Raises OSError when a port is taken.  The handlers of both signals are put back afterwards.
    """
    ended = _new_lock()
    ended.acquire()

    def end(number: int, frame: object) -> None:
        if ended.locked():
            ended.release()

    handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with broker:
            started(broker)
            ended.acquire()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
