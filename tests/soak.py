"""``python -m tests.soak --minutes 10``: publish and consume without end, with reconnects, and watch what grows.

Every few seconds a line says how many messages have passed and what the process holds: resident memory, descriptors,
threads, greenlets.  At the end: the slope of memory after the first quarter, and exit status 1 where messages were
lost, descriptors or threads grew, or memory rose by more than the limit.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gnsq_lite import Reader, Writer
from tests import flow, servers
from tests.ledger.worker import QUICK
from tests.proxy import Proxy

#: Handlers that each Reader may run at once.
THREADS = 8


@dataclass
class Result(flow.Result):
    """What a soak came to."""

    resets: int = 0


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
        self.result = Result(handlers=connections * THREADS)
        self._flow = flow.Flow("soak")

    def run(self) -> Result:
        """Run, and return what it came to."""
        options: dict[str, Any] = {"max_in_flight": 200, "concurrency": THREADS, "max_attempts": 0, **QUICK}
        with nsqd_of(self.server) as broker, Proxy(broker.tcp_address) as proxy:
            broker.prepare("soak", "ch")
            readers = [
                Reader("soak", "ch", self._flow.handle, nsqd_tcp_addresses=proxy.address, **options)
                for _ in range(self.connections)
            ]
            for reader in readers:
                reader.start(block=False)
            with Writer(proxy.address, publish_timeout=20.0, retries=10, **QUICK) as writer:
                publisher = threading.Thread(target=self._flow.publish, args=(writer, self.pause))
                publisher.start()
                limit = time.monotonic() + 60.0  # what grows is compared with all of them connected
                while not all(each.stats().connections for each in readers) and time.monotonic() < limit:
                    time.sleep(0.01)
                self._watch(proxy)
                self._flow.stop()
                publisher.join()
            self.result.lost = self._flow.settle(30.0)
            for reader in readers:
                reader.close()
        self.result.published, self.result.slowest = self._flow.published, self._flow.slowest
        return self.result

    def _watch(self, proxy: Proxy) -> None:
        rng = random.Random(1)
        strike = time.monotonic() + rng.uniform(1, 5)
        for now in self._flow.watch(self.result, self.seconds, self.every):
            if now >= strike:
                proxy.reset()
                self.result.resets += 1
                strike = now + rng.uniform(1, 5)


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
