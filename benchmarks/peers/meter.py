"""Measures a client inside its process: CPU, wall clock and memory between two messages.

Needs only the standard library, because the module also runs in the peers' environments.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_PAGE = resource.getpagesize()


def rss() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE


def cpu() -> float:
    """Return the user and system CPU seconds of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Counts messages, and measures all but the first *warmup* messages.

    A handler runs ``if tick() in marks: mark()``.  These are two C calls for each message, thread-safe and the same for
    every client.  A loop without a handler calls :meth:`start` and :meth:`stop` itself.
    """

    def __init__(self, job: dict[str, Any], done: Callable[[], object] | None = None) -> None:
        self.messages: int = job["messages"]
        warmup: int = job["warmup"]
        if warmup < 1:
            raise ValueError("warmup must be at least 1")
        self.tick = itertools.count(1).__next__
        self.marks = frozenset((warmup, warmup + self.messages))
        self.result: dict[str, Any] = {}
        self._first = warmup
        self._done = done
        self._at = (0.0, 0.0)
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin the measurement after the warm-up."""
        self.result["rss_start"] = rss()
        self._started = True
        self._at = cpu(), time.perf_counter()

    def stop(self) -> None:
        """End the measurement, and call *done*."""
        used, wall = cpu(), time.perf_counter()
        self.result.update(messages=self.messages, cpu=used - self._at[0], wall=wall - self._at[1], rss_end=rss())
        if self._done is not None:
            self._done()

    def around(self, work: Callable[[int], object]) -> dict[str, Any]:
        """Call *work* for the warm-up, then for the measured messages, and return the result."""
        work(self._first)
        self.start()
        work(self.messages)
        self.stop()
        return self.result

    def mark(self) -> None:
        """Start after the warm-up, or stop after the last message.  Two threads may call this method at once."""
        with self._lock:
            if self._started:
                self.stop()
            else:
                self.start()


def percentiles(seconds: list[float]) -> dict[str, Any]:
    """Return the number, p50, p90, p99 and maximum of *seconds*."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"messages": len(ordered), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}


def stamp_age(body: bytes) -> float:
    """Return the seconds since the time stamp at the head of *body*.  All processes share the monotonic clock."""
    return (time.monotonic_ns() - int(body[:20])) / 1e9


def report(result: dict[str, Any]) -> None:
    """Print *result* and exit without closing the client, because closing is not measured."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


def job() -> dict[str, Any]:
    """Return the job of this process."""
    loaded: dict[str, Any] = json.loads(sys.argv[1])
    return loaded


def body_of(job: dict[str, Any]) -> bytes:
    """Return the body to publish."""
    text: str = job["text"]
    return text.encode()
