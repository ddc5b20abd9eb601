"""``python -m tests.load --minutes 10 --connections 100``: publish and consume as fast as the machine can.

The server is a process of its own, a real nsqd where there is one: what grows is the client.  The Writer's connection
and that of one Reader go through :mod:`tests.heartbeats`, which measures how long nsqd's heartbeats wait for their NOP.
Exit status 1: messages were lost, a heartbeat waited too long, a connection was lost, or something grew.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gnsq_lite import Reader, Writer
from gnsq_lite.http import LookupdClient
from tests import flow, servers
from tests.heartbeats import Watch

TOPIC = "load"
#: Bytes that may be on the way, and in one MPUB.
ON_THE_WAY = 256 * 1024 * 1024
IN_ONE = 4 * 1024 * 1024


@dataclass
class Result(flow.Result):
    """What a load came to."""

    seconds: float = 0.0
    #: Seconds between nsqd's heartbeats, and those that one may wait for its NOP.
    interval: float = 1.0
    patience: float = 1.0
    #: Connections that ended before they were closed.
    disconnected: int = 0
    heartbeats: list[float] = field(default_factory=list)

    def faults(self) -> list[str]:
        found = super().faults()
        slow = [each for each in self.heartbeats if each >= self.patience]
        if slow:
            found.append(f"{len(slow)} heartbeats waited {self.patience:g} s or longer")
        if not self.heartbeats and self.seconds > 2 * self.interval:
            found.append("no heartbeat was seen")
        if self.disconnected:
            found.append(f"{self.disconnected} connections were lost")
        return found

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        last = self.samples[-1]
        rate = last.handled / self.seconds if self.seconds else 0.0
        yield f"{self.published} published, {self.lost} lost, {rate:.0f} a second, slowest publish {self.slowest:.2f} s"
        yield (
            f"memory {self.settled.rss} KiB after a quarter, {last.rss} KiB at the end, slope {self.slope():+.1f} KiB"
            f" a minute; descriptors {self.settled.descriptors}, {last.descriptors}; threads {self.settled.threads},"
            f" {last.threads}; greenlets {self.settled.greenlets}, {last.greenlets}; Python's blocks"
            f" {self.settled.blocks}, {last.blocks}"
        )
        if self.heartbeats:
            waits = sorted(1000 * each for each in self.heartbeats)
            yield (
                f"{len(waits)} heartbeats answered: median {waits[len(waits) // 2]:.1f} ms,"
                f" 99 % within {waits[len(waits) * 99 // 100]:.1f} ms, longest {waits[-1]:.1f} ms"
            )


class Servers(NamedTuple):
    """Where nsqd and nsqlookupd listen; all "host:port"."""

    nsqd: str
    nsqd_http: str
    lookupd_http: str


@contextmanager
def servers_of(kind: str) -> Iterator[Servers]:
    """Run an nsqd and an nsqlookupd in processes of their own."""
    if kind == "nsqd":
        with TemporaryDirectory(prefix="load-") as folder, servers.real_cluster(Path(folder)) as cluster:
            (node,) = cluster.nodes
            node.prepare(TOPIC, "ch")
            yield Servers(node.tcp_address, node.http_address, cluster.lookupd_http_address)
        return
    anywhere = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--nsqlookupd-http-address=127.0.0.1:0"]
    command = [sys.executable, "-m", "gnsq_lite", "broker", "--json", *anywhere]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        servers.http_call(found["nsqd_http"][0], "POST", f"/channel/create?topic={TOPIC}&channel=ch")
        yield Servers(found["nsqd_tcp"][0], found["nsqd_http"][0], found["lookupd_http"][0])
    finally:
        process.terminate()
        process.communicate()


def make_topics(nsqd_http: str, count: int) -> None:
    """Make so many topics more at an nsqd, which registers each at its nsqlookupd."""
    for number in range(count):
        assert servers.http_call(nsqd_http, "POST", f"/topic/create?topic=topic_{number}").status == 200


class Load:
    """One run: the servers, a Writer and Readers, and the proxy that times heartbeats."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.result = Result(handlers=chosen.connections, interval=chosen.heartbeat, patience=chosen.patience)
        window = min(flow.WINDOW, max(1, ON_THE_WAY // max(1, chosen.body)))
        batch = min(50, max(1, IN_ONE // max(1, chosen.body)))
        self._flow = flow.Flow(TOPIC, chosen.body, batch, window, chosen.messages)
        self._closing = False

    def _disconnected(self, address: str, reason: Any) -> None:
        if not self._closing:
            self.result.disconnected += 1

    def _readers(self, watch: Watch, found: Servers) -> Iterator[Reader]:
        for number in range(self.chosen.connections):
            where: dict[str, Any] = {"nsqd_tcp_addresses": found.nsqd if number else watch.address}
            if self.chosen.topics:
                where = {
                    "lookupd_http_addresses": found.lookupd_http,
                    "lookupd_poll_interval": 1.0,
                    "address_map": {} if number else {found.nsqd: watch.address},
                }
            yield Reader(
                TOPIC,
                "ch",
                self._flow.handle,
                max_in_flight=min(200, max(1, ON_THE_WAY // max(1, self.chosen.body) // self.chosen.connections)),
                concurrency=1,
                max_attempts=0,
                heartbeat_interval=self.chosen.heartbeat,
                on_disconnected=self._disconnected,
                **where,
            )

    def _writer(self, watch: Watch, found: Servers) -> Writer:
        options: dict[str, Any] = {"publish_timeout": 60.0, "heartbeat_interval": self.chosen.heartbeat}
        if self.chosen.topics:
            return Writer(
                lookupd_http_addresses=found.lookupd_http,
                lookupd_poll_interval=1.0,
                address_map={found.nsqd: watch.address},
                **options,
            )
        return Writer(watch.address, **options)

    def run(self) -> Result:
        """Run, and return what it came to."""
        with ExitStack() as stack:
            found = stack.enter_context(servers_of(self.chosen.server))
            if self.chosen.topics:
                make_topics(found.nsqd_http, self.chosen.topics)
                self._ask(found.lookupd_http)
            watch = Watch(found.nsqd)
            readers = list(self._readers(watch, found))
            for reader in readers:
                reader.start(block=False)
            began = time.monotonic()
            with self._writer(watch, found) as writer:
                publisher = threading.Thread(target=self._flow.publish, args=(writer,))
                publisher.start()
                for _ in self._flow.watch(self.result, self.chosen.minutes * 60, self.chosen.every):
                    pass
                self.result.seconds = time.monotonic() - began
                self._flow.stop()
                publisher.join()
                self.result.lost = self._flow.settle(60.0)
                self._closing = True
            for reader in readers:
                reader.close()
            self.result.heartbeats = watch.end()
        self.result.published, self.result.slowest = self._flow.published, self._flow.slowest
        return self.result

    def _ask(self, lookupd: str) -> None:
        with LookupdClient(lookupd) as client:
            for what, ask in (("topics", client.topics), ("nodes", client.nodes)):
                began = time.monotonic()
                count = len(ask())
                print(f"{what}: {count} in {time.monotonic() - began:.3f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run a load and return 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1, help="Readers, with a connection each")
    parser.add_argument("--body", type=int, default=100, help="bytes of a message")
    parser.add_argument("--messages", type=int, help="after so many the run ends")
    parser.add_argument("--topics", type=int, default=0, help="known to nsqlookupd, where nsqd is then looked for")
    parser.add_argument("--heartbeat", type=float, default=1.0, help="seconds between two of nsqd's heartbeats")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds a heartbeat may wait for its NOP")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    real = servers.nsqd_program() is not None and servers.nsqlookupd_program() is not None
    parser.add_argument("--server", choices=["embedded", "nsqd"], default="nsqd" if real else "embedded")
    result = Load(parser.parse_args(arguments)).run()
    for line in (*result.lines(), *result.faults()):
        print(line, flush=True)
    return 1 if result.faults() else 0


if __name__ == "__main__":
    logging.disable()
    sys.exit(main())
