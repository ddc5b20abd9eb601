"""Measure a client from inside its process: CPU, wall clock and memory between two messages.

Needs nothing but the standard library: it also runs in the peers' environments.
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
    """Bytes of this process that are in memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE


def cpu() -> float:
    """CPU seconds this process has used, all its threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Counts messages; the first *warmup* of them are not measured.

    A handler does ``if tick() in marks: mark()``: two C calls a message, the same for every client, safe in threads.
    A loop without a handler calls :meth:`start` and :meth:`stop` itself.
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
        """Begin: everything before was warm-up."""
        self.result["rss_start"] = rss()
        self._started = True
        self._at = cpu(), time.perf_counter()

    def stop(self) -> None:
        """End, and call *done*."""
        used, wall = cpu(), time.perf_counter()
        self.result.update(messages=self.messages, cpu=used - self._at[0], wall=wall - self._at[1], rss_end=rss())
        if self._done is not None:
            self._done()

    def around(self, work: Callable[[int], object]) -> dict[str, Any]:
        """Have *work* do the messages of the warm-up, then those that count; return the result."""
        work(self._first)
        self.start()
        work(self.messages)
        self.stop()
        return self.result

    def mark(self) -> None:
        """The count has reached the end of the warm-up, or the last message; maybe in two threads."""
        with self._lock:
            if self._started:
                self.stop()
            else:
                self.start()


def percentiles(seconds: list[float]) -> dict[str, Any]:
    """Return count and p50, p90, p99 and max of *seconds*, in seconds."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"messages": len(ordered), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}


def stamp_age(body: bytes) -> float:
    """Seconds since the monotonic nanoseconds at the head of *body* (the same clock in every process of a machine)."""
    return (time.monotonic_ns() - int(body[:20])) / 1e9


def report(result: dict[str, Any]) -> None:
    """Print *result* and leave at once: how long a client takes to close is not measured."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


def job() -> dict[str, Any]:
    """Return what this process is to do."""
    loaded: dict[str, Any] = json.loads(sys.argv[1])
    return loaded


def body_of(job: dict[str, Any]) -> bytes:
    """Return the body to publish."""
    text: str = job["text"]
    return text.encode()
