"""Data that a Worker exchanges with its supervisor: heartbeats, messages begun, readiness, pauses, recycling."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.message import Message, is_open
from gnsq_lite.net.io_thread import io_loop
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.waiting import run_in_loop
from gnsq_lite.options import ConnectionOptions, RetryOptions
from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.report_files import Report, Slot
from gnsq_lite.supervise.shared_memory import TICK, Pulse, Runs
from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.specs import Handler

#: Time limit in seconds for the I/O loop's answer; in a monkey-patched process a handler may block the loop.
TIMEOUT = 2.0
_MIB = 1024 * 1024
#: Seconds that the default adds to the longest time limit, or to the two heartbeat intervals until nsqd closes.
_SPARE = 30.0


class Supervised(Middleware[Any]):
    """Show the supervisor that the I/O loop runs, and which message a handler began last."""

    def __init__(self, worker: Worker, pulse: Pulse, runs: Runs) -> None:
        self._worker, self._pulse, self._runs = worker, pulse, runs

    def started(self, worker: Worker) -> None:
        """Start ticking."""
        self._pulse.start(hang_timeout(worker))
        loop = io_loop()
        run_in_loop(loop, loop.spawn, "pulse", self._tick)

    def _tick(self) -> None:
        while True:
            self._pulse.tick()
            sleep(TICK)

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]:
        """Wrap *call* to record its message before the handler begins: a process that hangs cannot do it later.

        The first attempt counts as begun without being recorded, so that a message that does not fail costs little.
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
                if is_open(message) and not message.is_async:  # it is finished now; otherwise it may have been requeued
                    add(each, -1)
            return returned

        return begin

    def known_of(self, message: Message) -> tuple[int, int]:
        """Return how often handlers began a message without finishing it, and how many processes have ended."""
        return self._runs.count(number(message)), self._runs.ended


def follow_pauses(worker: Worker, slot: Slot, was_paused: bool) -> Callable[[], None]:
    """Return a function that pauses and resumes *worker* as its supervisor does."""

    def look() -> None:
        nonlocal was_paused
        if (is_paused := slot.is_paused()) != was_paused:
            was_paused = is_paused
            for reader in worker.readers:
                (reader.pause if is_paused else reader.resume)()

    return look


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


def resident() -> float:
    """Return the resident memory of this process in MiB, or its peak if there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / _MIB if sys.platform == "darwin" else most / 1024


@dataclass(frozen=True)
class Wear:
    """The limits after which a process is replaced."""

    #: Maximum messages finished or requeued.
    max_messages: int | None = None
    #: Maximum MiB of resident memory.
    max_memory: int | None = None

    def why(self, stats: Sequence[ReaderStats], memory: Callable[[], float] = resident) -> str | None:
        """Return why the process should be replaced, or None."""
        overdue = sum(each.handlers_overdue for each in stats)
        if overdue:  # a thread can only be ended with its process
            return f"{overdue} of its handlers do not end at their time limit"
        messages = sum(each.finished + each.requeued for each in stats)
        if self.max_messages is not None and messages >= self.max_messages:
            return f"it has handled {messages} messages"
        if self.max_memory is not None and (used := memory()) >= self.max_memory:
            return f"it uses {used:.0f} MiB"
        return None


class Reports:
    """Report changes to the supervisor."""

    def __init__(self, worker: Worker, slot: Slot, wear: Wear) -> None:
        self._worker, self._slot, self._wear = worker, slot, wear
        self._ready, self._is_worn = "", False

    def look(self) -> None:
        """Report changes; the supervisor decides when to drain."""
        try:
            stats = [reader.stats(TIMEOUT) for reader in self._worker.readers]
        except TimeoutError:  # a handler blocks the I/O loop
            stats = []
        ready = f"{sum(each.is_ready for each in stats)}/{len(self._worker.handlers)}"
        if ready != self._ready:
            self._slot.report(Report.READY, ready)
            self._ready = ready
        why = None if self._is_worn else self._wear.why(stats)
        if why is not None:
            self._slot.report(Report.WORN, why)
            self._is_worn = True
