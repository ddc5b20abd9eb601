"""What a Worker's process shares with its supervisor while handlers run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from gnsq_lite.message import Message, is_open
from gnsq_lite.net.io_thread import io_loop
from gnsq_lite.net.waiting import run_in_loop
from gnsq_lite.options import ConnectionOptions, RetryOptions
from gnsq_lite.supervise.shared_memory import TICK, Pulse, Runs
from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.specs import Handler

#: Seconds that the default adds to the longest time limit, or to the two heartbeat intervals after which nsqd closes.
_SPARE = 30.0


class Supervised(Middleware[Any]):
    """Shows the supervisor that the I/O loop runs, and which message a handler began last."""

    def __init__(self, worker: Worker, pulse: Pulse, runs: Runs) -> None:
        self._worker, self._pulse, self._runs = worker, pulse, runs

    def started(self, worker: Worker) -> None:
        """Tick from now on."""
        self._pulse.start(hang_timeout(worker))
        loop = io_loop()
        run_in_loop(loop, loop.every, TICK, self._pulse.tick)

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]:
        """Return *call*, with its message noted before it begins: a process that hangs or crashes cannot do so.

        The first attempt is not counted, so that a message that does not fail costs little: it counts as begun.
        """
        note, where, add = self._pulse.begin, f"{handler.topic}/{handler.channel} ".encode(), self._runs.add
        most = handler.merged(self._worker.defaults).get("max_attempts", RetryOptions.max_attempts)
        counted_from = min(2, most or 65536)

        def begin(given: Any) -> object:
            messages = given if isinstance(given, list) else (given,)
            note(where + messages[0].id)
            again = [(message, number(message)) for message in messages if message.attempts >= counted_from]
            for _, each in again:
                add(each, 1)
            returned = call(given)
            for message, each in again:
                if is_open(message) and not message.is_async:  # it is finished now; else it may have been requeued
                    add(each, -1)
            return returned

        return begin

    def known_of(self, message: Message) -> tuple[int, int]:
        """Return how many handlers began a message and did not finish it, and how many processes have ended."""
        return self._runs.count(number(message)), self._runs.ended


def number(message: Message) -> int:
    """Return the number of a message in :class:`Runs`, the same in every process; channels of a topic share ids."""
    name = f"{message.topic}/{message.channel} {message.nsqd_address} ".encode() + message.id
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def hang_timeout(worker: Worker) -> float:
    """Return the seconds without a tick after which a supervisor kills a process of *worker*; 0: never."""
    if worker.hang_timeout is not None:
        return worker.hang_timeout
    longest = 2 * ConnectionOptions.heartbeat_interval
    for handler in worker.handlers:
        options = handler.merged(worker.defaults)
        longest = max(longest, options.get("time_limit") or 0.0, 2 * options.get("heartbeat_interval", 0.0))
    return longest + _SPARE
