"""``python -m tests.load --minutes 10 --connections 100``: publish and consume as fast as the machine can.

The server runs in another process, a real nsqd if there is one, so that only the client can grow here.  With
``--resets`` the connections go through a proxy that resets all of them every one to five seconds.  Exit status 1:
messages were lost, a connection was lost without ``--resets`` (nsqd hangs up after two heartbeats without a NOP), or
something grew.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gnsq_lite import Reader, Writer
from tests import load_generator, servers
from tests.ledger.worker import QUICK
from tests.programs import piped
from tests.proxy import Proxy

TOPIC = "load"
#: Bytes that may be on the way, and in one MPUB.
ON_THE_WAY = 256 * 1024 * 1024
IN_ONE = 4 * 1024 * 1024


class Servers(NamedTuple):
    """Addresses of nsqd and nsqlookupd, each "host:port"."""

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
    with piped(["-m", "gnsq_lite", "broker", "--json", *anywhere]) as broker:
        found = json.loads(broker.read_line())
        servers.http_call(found["nsqd_http"][0], "POST", f"/channel/create?topic={TOPIC}&channel=ch")
        yield Servers(found["nsqd_tcp"][0], found["nsqd_http"][0], found["lookupd_http"][0])


class Load:
    """One run: the servers, a Writer and Readers."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.result = load_generator.Result(handlers=chosen.connections)
        self.disconnected = 0
        window = min(load_generator.WINDOW, max(1, ON_THE_WAY // max(1, chosen.body)))
        batch = min(50, max(1, IN_ONE // max(1, chosen.body)))
        self._flow = load_generator.Flow(TOPIC, chosen.body, batch, window, chosen.messages)
        self._closing = False

    def _on_disconnected(self, address: str, reason: Any) -> None:
        if not self._closing:
            self.disconnected += 1

    def _options(self, found: Servers, nsqd: str) -> dict[str, Any]:
        options: dict[str, Any] = {**QUICK, "heartbeat_interval": self.chosen.heartbeat}
        if self.chosen.topics:
            options |= {"lookupd_http_addresses": found.lookupd_http, "lookupd_poll_interval": 1.0}
            return options | {"address_map": {found.nsqd: nsqd}}
        return options | {"nsqd_tcp_addresses": nsqd}

    def run(self) -> load_generator.Result:
        """Publish and consume for the chosen time and return the result."""
        in_flight = min(200, max(1, ON_THE_WAY // max(1, self.chosen.body) // self.chosen.connections))
        with ExitStack() as stack:
            found = stack.enter_context(servers_of(self.chosen.server))
            for number in range(self.chosen.topics):  # nsqd registers each at its nsqlookupd
                servers.http_call(found.nsqd_http, "POST", f"/topic/create?topic=topic_{number}")
            proxy = stack.enter_context(Proxy(found.nsqd)) if self.chosen.resets else None
            options = self._options(found, found.nsqd if proxy is None else proxy.address)
            reading = {"max_in_flight": in_flight, "concurrency": 1, "max_attempts": 0, **options}
            readers = [
                Reader(TOPIC, "ch", self._flow.handle, on_disconnected=self._on_disconnected, **reading)
                for _ in range(self.chosen.connections)
            ]
            for reader in readers:
                reader.start(block=False)
            with Writer(publish_timeout=60.0, retries=10 if proxy else 0, **options) as writer:
                publisher = threading.Thread(target=self._flow.publish, args=(writer,))
                publisher.start()
                self._watch(proxy)
                self._flow.stop()
                publisher.join()
                self.result.lost = self._flow.settle(60.0)
                self._closing = True
            for reader in readers:
                reader.close()
        self.result.published, self.result.slowest = self._flow.published, self._flow.slowest
        return self.result

    def _watch(self, proxy: Proxy | None) -> None:
        rng = random.Random(1)
        reset_at = time.monotonic() + rng.uniform(1, 5)
        for now in self._flow.watch(self.result, self.chosen.minutes * 60, self.chosen.every):
            if proxy is not None and now >= reset_at:
                proxy.reset()
                reset_at = now + rng.uniform(1, 5)

    def faults(self) -> list[str]:
        """Return what went wrong."""
        lost = self.disconnected and not self.chosen.resets
        return self.result.faults() + ([f"{self.disconnected} connections were lost"] if lost else [])


def main(arguments: list[str] | None = None) -> int:
    """Run a load; return 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1, help="Readers, with a connection each")
    parser.add_argument("--body", type=int, default=100, help="bytes of a message")
    parser.add_argument("--messages", type=int, help="after so many the run ends")
    parser.add_argument("--topics", type=int, default=0, help="so many more topics; nsqd is found by nsqlookupd")
    parser.add_argument("--heartbeat", type=float, default=1.0, help="seconds between two of nsqd's heartbeats")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--resets", action="store_true", help="reset all connections every one to five seconds")
    real = servers.nsqd_program() is not None and servers.nsqlookupd_program() is not None
    parser.add_argument("--server", choices=["embedded", "nsqd"], default="nsqd" if real else "embedded")
    load = Load(parser.parse_args(arguments))
    result = load.run()
    print(
        f"{result.published} published, {result.lost} lost, {load.disconnected} connections lost,"
        f" slowest publish {result.slowest:.2f} s, memory {result.slope():+.1f} KiB a minute"
    )
    faults = load.faults()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    logging.disable()
    sys.exit(main())
