"""The life of a Worker's process: start, wait, drain (CLOSE-1)."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from gnsq_lite.net.signals import Stages, beside, in_main_thread
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.reader import Reader
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.worker.specs import Supervision
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.worker")

#: Seconds between two checks for an ended Reader, an ended supervisor and changed sources.
_LOOK = 0.5

#: Called regularly while the Worker runs; returns True to drain now.
Tick = Callable[[], object]


class Runnable(Protocol):
    """The part of :class:`gnsq_lite.Worker` that :func:`run` uses."""

    @property
    def stages(self) -> Stages: ...

    @property
    def readers(self) -> Sequence[Reader]: ...

    def start(self, supervision: Supervision | None = None) -> None: ...

    def close(self, timeout: float) -> bool: ...


def run(
    worker: Runnable, drain_timeout: float, supervision: Supervision | None = None, ticks: Sequence[Tick] = ()
) -> int:
    """Run *worker* to its end and return the exit code; see :meth:`gnsq_lite.Worker.run`.

    A supervised process drains on each SIGTERM and SIGINT, because a service manager may send them to it as well as
    to its supervisor, which passes them on; it ends at once on SIGQUIT.
    """
    stages = worker.stages
    told: list[tuple[int, Callable[[int, Any], None]]] = []
    if in_main_thread():
        first = stages.ask_to_drain if supervision is not None else stages.ask
        told = [(signal.SIGTERM, first), (signal.SIGINT, first)]
        told += [(signal.SIGQUIT, stages.ask_at_once)] if supervision is not None else []
    with stages.listening(told):
        worker.start(supervision)
        log.info("worker runs", extra={"pid": os.getpid(), "handlers": len(worker.readers)})
        error = _until_told(worker, stages, ticks)
        log.info("worker drains, for at most %g s", drain_timeout, extra={"pid": os.getpid(), "limit": drain_timeout})
        drained = worker.close(drain_timeout)
    log.info("worker ends, %s", "drained" if drained else "not drained", extra={"pid": os.getpid(), "drained": drained})
    if error is not None:
        raise error
    return ExitCode.OK if drained else ExitCode.NOT_DRAINED


def _until_told(worker: Runnable, stages: Stages, ticks: Sequence[Tick]) -> BaseException | None:
    """Wait until it is time to drain; return None, or the error that ended a Reader."""
    while not stages.drain.done():
        try:
            for reader in worker.readers:
                if reader.join(0):
                    log.error("the Reader of %s/%s was closed", reader.topic, reader.channel)
                    return None
            if any(tick() for tick in ticks):
                return None
            wait_any([stages.drain], _LOOK)
        except KeyboardInterrupt as interrupt:  # raised by a handler, or if run() is not in the main thread
            return interrupt
        except BaseException as error:
            return error
    return None


def drain(readers: Sequence[Reader], writers: Sequence[Writer], stages: Stages, timeout: float) -> bool:
    """Close all Readers in parallel, then the Writers; return whether every handler finished in time."""
    closed = [Completion() for _ in readers]
    deadline = time.monotonic() + timeout
    for reader, done in zip(readers, closed, strict=True):
        beside(partial(_close_one, reader, timeout, done))
    for done in closed:
        while not done.done() and not stages.at_once.done():
            wait_any([done, stages.at_once], _LOOK)
    if stages.at_once.done():
        log.warning("ending at once")
        for reader in readers:
            reader.close(0.0)
        deadline = time.monotonic()
    drained = not any(reader.stats().handlers_abandoned for reader in readers)
    for writer in writers:
        writer.close(max(1.0, deadline - time.monotonic()))
    return drained


def _close_one(reader: Reader, timeout: float, done: Completion) -> None:
    try:
        reader.close(timeout)
    finally:
        done.settle()
