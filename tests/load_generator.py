"""Numbered messages from Writers to Readers for minutes or hours, and the memory and descriptors of the process.

Used by :mod:`tests.load`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import gevent

from gnsq_lite import Message, Writer

#: KiB that resident memory may rise between the end of the first quarter and the end.
MOST_GROWTH = 20 * 1024
#: Blocks of Python's allocator that may come in the same time; those of a full window are fewer.
MOST_BLOCKS = 40_000
WINDOW = 2000


@dataclass
class Sample:
    """What the process held at one time."""

    at: float
    handled: int
    rss: int
    descriptors: int
    threads: int
    greenlets: int
    #: Blocks that Python's allocator has given out: what lives, where resident memory also has what malloc keeps.
    blocks: int
    #: Handlers' threads, which are not among the others: they come when there is work for them.
    handlers: int = 0


@dataclass
class Result:
    """What a run came to."""

    samples: list[Sample] = field(default_factory=list)
    published: int = 0
    lost: int = 0
    #: Seconds of the slowest publish.
    slowest: float = 0.0
    #: Threads that the handlers of all Readers may have.
    handlers: int = 0

    @property
    def settled(self) -> Sample:
        """The sample at the end of the first quarter."""
        return self.samples[len(self.samples) // 4]

    def faults(self) -> list[str]:
        """Say what is wrong."""
        settled, last = self.settled, self.samples[-1]
        found = []
        if self.lost:
            found.append(f"{self.lost} messages were lost")
        if last.descriptors > settled.descriptors + 10:
            found.append(f"descriptors rose from {settled.descriptors} to {last.descriptors}")
        if last.threads > settled.threads + 5:
            found.append(f"threads rose from {settled.threads} to {last.threads}")
        if last.handlers > self.handlers:
            found.append(f"{last.handlers} threads run handlers, where there may be {self.handlers}")
        if last.rss > settled.rss + MOST_GROWTH:
            found.append(f"resident memory rose from {settled.rss} to {last.rss} KiB")
        if last.blocks > settled.blocks + MOST_BLOCKS:
            found.append(f"Python's blocks rose from {settled.blocks} to {last.blocks}")
        return found

    def slope(self) -> float:
        """Return the slope of resident memory after the first quarter, KiB a minute, by least squares."""
        points = [(s.at / 60, s.rss) for s in self.samples[len(self.samples) // 4 :]]
        middle = sum(x for x, _ in points) / len(points)
        spread = sum((x - middle) ** 2 for x, _ in points)
        return sum((x - middle) * y for x, y in points) / spread if spread else 0.0


def sample(at: float, handled: int) -> Sample:
    """Look at this process."""
    with open("/proc/self/statm") as pages:
        rss = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    gc.collect()
    greenlets = sum(1 for each in gc.get_objects() if type(each) is gevent.Greenlet and not each.ready())
    files = len(os.listdir("/proc/self/fd"))
    threads = [each.name for each in threading.enumerate()]
    handlers = sum(1 for name in threads if name.startswith("gnsq_lite-handler"))
    return Sample(at, handled, rss, files, len(threads) - handlers, greenlets, sys.getallocatedblocks(), handlers)


class Flow:
    """Publishes numbers and strikes off those that were handled; never more than *window* are on the way.

    *body*: bytes of each message, filled up with spaces; *most*: after so many numbers publishing ends.
    """

    def __init__(
        self, topic: str, body: int = 0, batch: int = 50, window: int = WINDOW, most: int | None = None
    ) -> None:
        self.topic, self._body, self._batch, self._window, self._most = topic, body, batch, window, most
        self.handled = 0
        self.published = 0
        self.slowest = 0.0
        self._missing: set[int] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        #: Set when there is no more to publish.
        self.ended = threading.Event()

    def handle(self, message: Message) -> None:
        """Strike the number off."""
        number = int(message.body[:20])
        with self._lock:
            self._missing.discard(number)
            self.handled += 1

    def _take(self) -> range | None:
        """Return the numbers to publish next; None: too many are on the way."""
        with self._lock:
            if len(self._missing) >= self._window:
                return None
            upto = self.published + self._batch
            numbers = range(self.published, upto if self._most is None else min(upto, self._most))
            self.published = numbers.stop
            self._missing.update(numbers)
            return numbers

    def publish(self, writer: Writer) -> None:
        """Publish until the run stops, or until all messages were published."""
        try:
            while not self._stop.is_set():
                numbers = self._take()
                if numbers is None:
                    time.sleep(0.002)
                    continue
                if not numbers:
                    break
                began = time.monotonic()
                writer.multipublish(self.topic, [(b"%d" % number).ljust(self._body) for number in numbers])
                self.slowest = max(self.slowest, time.monotonic() - began)
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Publish no more."""
        self._stop.set()

    def settle(self, seconds: float) -> int:
        """Wait at most *seconds* until every number was handled; return how many were not."""
        limit = time.monotonic() + seconds
        while self._missing and time.monotonic() < limit:
            time.sleep(0.05)
        return len(self._missing)

    def watch(self, result: Result, seconds: float, every: float) -> Iterator[float]:
        """Yield the time, again and again, for *seconds*, and *every* so many take a sample; one more at the end."""
        look = began = time.monotonic()
        while (now := time.monotonic()) < began + seconds and not self.ended.is_set():
            if now >= look:
                found = sample(now - began, self.handled)
                result.samples.append(found)
                print(found, flush=True)
                look += every
            yield now
            time.sleep(0.05)
        result.samples.append(sample(time.monotonic() - began, self.handled))
