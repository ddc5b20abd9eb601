"""``python -m tests.soak --minutes 10``: publish and consume without end, with reconnects, and watch what grows.

Every few seconds a line says how many messages have passed and what the process holds: resident memory, descriptors,
threads, greenlets.  At the end: the slope of memory after the first quarter, and exit status 1 where messages were
lost, descriptors or threads grew, or memory rose by more than the limit.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gevent

from gnsq_lite import Message, Reader, Writer
from tests import servers
from tests.ledger.worker import QUICK
from tests.proxy import Proxy

#: KiB that resident memory may rise between the end of the first quarter and the end.
MOST_GROWTH = 20 * 1024
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


@dataclass
class Result:
    """What a soak came to."""

    samples: list[Sample] = field(default_factory=list)
    published: int = 0
    lost: int = 0
    resets: int = 0
    #: Seconds of the slowest publish.
    slowest: float = 0.0

    def faults(self) -> list[str]:
        """Say what is wrong."""
        settled = self.samples[len(self.samples) // 4]
        last = self.samples[-1]
        found = []
        if self.lost:
            found.append(f"{self.lost} messages were lost")
        if last.descriptors > settled.descriptors + 10:
            found.append(f"descriptors rose from {settled.descriptors} to {last.descriptors}")
        if last.threads > settled.threads + 5:
            found.append(f"threads rose from {settled.threads} to {last.threads}")
        if last.rss > settled.rss + MOST_GROWTH:
            found.append(f"resident memory rose from {settled.rss} to {last.rss} KiB")
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
    return Sample(at, handled, rss, len(os.listdir("/proc/self/fd")), threading.active_count(), greenlets)


@contextmanager
def nsqd_of(kind: str) -> Iterator[servers.ServerHandle]:
    """Run an nsqd: a real one, whose memory is its own, or the embedded one, which grows with this process."""
    if kind == "embedded":
        with servers.embedded_nsqd(msg_timeout=5.0) as node:
            yield node
    else:
        with TemporaryDirectory(prefix="soak-") as folder, servers.real_nsqd(Path(folder), msg_timeout=5.0) as node:
            yield node


class Soak:
    """One run: a broker, a proxy that resets connections at random, Writers and Readers."""

    def __init__(self, seconds: float, connections: int, every: float, pause: float, server: str) -> None:
        self.seconds, self.connections, self.every, self.pause = seconds, connections, every, pause
        self.server = server
        self.result = Result()
        self._missing: set[int] = set()
        self._handled = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._number = 0

    def handle(self, message: Message) -> None:
        """Strike the number off."""
        with self._lock:
            self._missing.discard(int(message.body))
            self._handled += 1

    def publish(self, writer: Writer) -> None:
        """Publish numbers until told to stop; never more than WINDOW ahead of the Readers."""
        while not self._stop.is_set():
            with self._lock:
                ahead = len(self._missing)
                numbers = range(self._number, self._number + 50)
                if ahead < WINDOW:
                    self._number += 50
                    self._missing.update(numbers)
            if ahead >= WINDOW:
                time.sleep(0.01)
                continue
            began = time.monotonic()
            writer.multipublish("soak", [b"%d" % number for number in numbers])
            self.result.slowest = max(self.result.slowest, time.monotonic() - began)
            time.sleep(self.pause)

    def run(self) -> Result:
        """Run, and return what it came to."""
        options: dict[str, Any] = {"max_in_flight": 200, "max_attempts": 0, **QUICK}
        with nsqd_of(self.server) as broker, Proxy(broker.tcp_address) as proxy:
            broker.prepare("soak", "ch")
            readers = [
                Reader("soak", "ch", self.handle, nsqd_tcp_addresses=proxy.address, **options)
                for _ in range(self.connections)
            ]
            for reader in readers:
                reader.start(block=False)
            with Writer(proxy.address, publish_timeout=20.0, retries=10, **QUICK) as writer:
                publisher = threading.Thread(target=self.publish, args=(writer,))
                publisher.start()
                self._watch(proxy)
                self._stop.set()
                publisher.join()
            limit = time.monotonic() + 30
            while self._missing and time.monotonic() < limit:
                time.sleep(0.05)
            for reader in readers:
                reader.close()
        self.result.lost, self.result.published = len(self._missing), self._number
        return self.result

    def _watch(self, proxy: Proxy) -> None:
        rng = random.Random(1)
        began = time.monotonic()
        look, strike = began, began + rng.uniform(1, 5)
        while (now := time.monotonic()) < began + self.seconds:
            if now >= look:
                found = sample(now - began, self._handled)
                self.result.samples.append(found)
                print(found, flush=True)
                look += self.every
            if now >= strike:
                proxy.reset()
                self.result.resets += 1
                strike = now + rng.uniform(1, 5)
            time.sleep(0.05)
        self.result.samples.append(sample(time.monotonic() - began, self._handled))


def main(arguments: list[str] | None = None) -> int:
    """Run a soak and return 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=10, help="Readers, with a connection each")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two batches of 50 messages")
    found = "embedded" if servers.nsqd_program() is None else "nsqd"
    parser.add_argument("--server", choices=["embedded", "nsqd"], default=found, help="a real nsqd where there is one")
    chosen = parser.parse_args(arguments)
    result = Soak(chosen.minutes * 60, chosen.connections, chosen.every, chosen.pause, chosen.server).run()
    print(
        f"{result.published} published, {result.lost} lost, {result.resets} resets,"
        f" slowest publish {result.slowest:.2f} s, memory {result.slope():+.1f} KiB a minute"
    )
    for fault in result.faults():
        print(fault)
    return 1 if result.faults() else 0


if __name__ == "__main__":
    logging.disable()
    sys.exit(main())
