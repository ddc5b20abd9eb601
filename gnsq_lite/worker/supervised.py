"""Reports ticks, begun messages, ready handlers and replacement requests to the supervisor, and obeys its pauses."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from gnsq_lite.message import Message, Requeue, is_open
from gnsq_lite.net.io_thread import io_loop
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.waiting import run_in_loop, wait_any
from gnsq_lite.options import ConnectionOptions, RetryOptions
from gnsq_lite.stats import ReaderStats
from gnsq_lite.supervise.children import PRINT_AND_END, PRINT_STACKS
from gnsq_lite.supervise.shared_memory import TICK, GroupMemory, ProcessMemory
from gnsq_lite.supervise.slots import Slot
from gnsq_lite.worker.app import Middleware, Worker
from gnsq_lite.worker.specs import Handler

log = logging.getLogger("gnsq_lite.worker")

#: Time limit in seconds of Worker.stats(), because in a monkey-patched process a handler may block the I/O loop.
TIMEOUT = 2.0
_MIB = 1024 * 1024
#: Seconds that the default hang_timeout adds to the longest time limit, or to two heartbeats if these are longer.
_SPARE = 30.0
#: Share of max_memory from which on a process gets no messages.
_MOST_OVER = 1.25
#: Seconds for which a handler call waits until the process drains.  Without this wait, nsqd would send the requeued
#: message here again before it knows RDY 0, and the message would use up its attempts.
_HOLD = 30.0


class Supervised(Middleware[Any]):
    """Middleware of a supervised process.  It reports to the supervisor, and follows the supervisor's pauses.

    Args:
        max_messages: Number of finished and requeued messages after which the process asks for replacement, or None.
        max_memory: Resident memory in MiB at which the process asks for replacement, or None.
    """

    def __init__(self, worker: Worker, slot: Slot, max_messages: int | None, max_memory: int | None) -> None:
        self._worker, self._slot = worker, slot
        self._max_messages, self._max_memory = max_messages, max_memory
        self._own, self._group = ProcessMemory(slot.socket), GroupMemory(os.path.dirname(slot.socket))
        self._own.drain_timeout = worker.drain_timeout
        #: Memory in MiB from which on handlers get no messages, or infinity.
        self._too_much = inf if max_memory is None or resident() >= max_memory else max_memory * _MOST_OVER
        self._is_full = False
        #: Whether the Readers are paused, or will start paused.
        self.is_paused = self._group.is_paused

    def started(self, worker: Worker) -> None:
        """Start to count ticks in the I/O loop."""
        with contextlib.suppress(OSError):  # without the file, the supervisor does not send the signal
            self._stacks = open(f"{self._slot.socket}.stacks", "ab")  # noqa: SIM115 - open while the process runs
            faulthandler.register(PRINT_STACKS, file=self._stacks, all_threads=True, chain=False)
            faulthandler.register(PRINT_AND_END, file=self._stacks, all_threads=True, chain=True)
        self._own.hang_timeout = hang_timeout(worker)
        loop = io_loop()
        run_in_loop(loop, loop.spawn, "ticks", self._tick)

    def _tick(self) -> None:
        while True:
            self._own.ticks += 1
            sleep(TICK)

    def wrap(self, call: Callable[[Any], object], handler: Handler) -> Callable[[Any], object]:
        """Wrap *call* to record its message before the handler begins, because a hung process cannot record it later.

        To save time, the first attempt is not counted in the group's memory, except if ``max_attempts`` is 1 or the
        handler has ``not_before``: each process then begins to count at 1.
        """
        record, where, add = self._own.begin, f"{handler.topic}/{handler.channel} ".encode(), self._group.add
        options = handler.merged(self._worker.defaults)
        most = options.get("max_attempts", RetryOptions.max_attempts)
        counted_from = 1 if options.get("not_before") else min(2, most or 65536)

        def begin(given: Any) -> object:
            messages = given if isinstance(given, list) else (given,)
            if self._is_full or (self._too_much < inf and resident() >= self._too_much):
                self._wait_for_replacement()
            record(where + messages[0].id)
            again = [(message, number(message)) for message in messages if message.attempts >= counted_from]
            for _, each in again:
                add(each, 1)
            returned = call(given)
            for message, each in again:
                if is_open(message) and not message.is_async:  # the Reader finishes this message now
                    add(each, -1)
            return returned

        return begin

    def _wait_for_replacement(self) -> None:
        """Pause the Readers, wait until this process drains, and requeue the caller's message for another process."""
        if not self._is_full:
            self._is_full, self._own.has_changed = True, 1
            log.warning("the process uses %.0f MiB; it gets no messages until it is replaced", resident())
            for reader in self._worker.readers:
                reader.pause()
        wait_any([self._worker.stages.drain], _HOLD)
        raise Requeue(0.0, backoff=False)

    def known_of(self, message: Message) -> tuple[int, int]:
        """Return the number of unfinished handler calls of *message*, and the number of ended processes."""
        return self._group.count(number(message)), self._group.ended

    def source_changed(self) -> None:
        """Ask the supervisor to replace the process, because a source file has changed."""
        self._own.has_changed = 1

    def check(self) -> bool:
        """Pause or resume as the supervisor requests, and report to it.  Return whether the supervisor has ended."""
        if self._group.is_paused != self.is_paused and not self._is_full:
            self.is_paused = not self.is_paused
            for reader in self._worker.readers:
                (reader.pause if self.is_paused else reader.resume)()
        if self._slot.is_orphaned():
            return True
        try:
            stats = self._worker.stats(TIMEOUT)
        except TimeoutError:  # a handler blocks the I/O loop
            stats = ()
        self._own.ready, self._own.handlers = sum(each.is_ready for each in stats), len(self._worker.handlers)
        if not self._own.reason:
            self._own.ask_to_be_replaced(self._reason(stats))
        return False

    def _reason(self, stats: Sequence[ReaderStats]) -> str:
        """Return the reason for which the supervisor should replace the process, or ""."""
        overdue = sum(each.handlers_overdue for each in stats)
        if overdue:  # a thread of such a handler ends only with the process
            return f"{overdue} handlers run beyond their time limit"
        messages = sum(each.finished + each.requeued for each in stats)
        if self._max_messages is not None and messages >= self._max_messages:
            return f"it has handled {messages} messages"
        if self._max_memory is not None and (used := resident()) >= self._max_memory:
            return f"it uses {used:.0f} MiB"
        return ""


def number(message: Message) -> int:
    """Return the message's number in :class:`GroupMemory`, a hash that is the same in every process."""
    name = f"{message.topic}/{message.channel} {message.nsqd_address} ".encode() + message.id
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def hang_timeout(worker: Worker) -> float:
    """Return the seconds without a tick after which a supervisor kills a process of *worker*, or 0 for never."""
    if worker.hang_timeout is not None:
        return worker.hang_timeout
    options = [handler.merged(worker.defaults) for handler in worker.handlers]
    heartbeats = [each.get("heartbeat_interval", ConnectionOptions.heartbeat_interval) for each in options]
    longest = 2 * max(heartbeats, default=ConnectionOptions.heartbeat_interval)
    return max([longest, *(each.get("time_limit") or 0.0 for each in options)]) + _SPARE


def resident() -> float:
    """Return the resident memory of this process in MiB, or its peak if there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / _MIB if sys.platform == "darwin" else most / 1024
