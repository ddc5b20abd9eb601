"""A cluster of Youzan's servers for tests: an etcd, a nsqlookupd and nsqds, on ports of 127.0.0.1, ended with the test.

The programs come from ``GNSQ_YOUZAN_NSQD`` and ``GNSQ_YOUZAN_NSQLOOKUPD``; etcd, which must speak its API v2 (3.4 and
3.5 do), from PATH or ``GNSQ_ETCD``.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests import servers

#: Seconds until a cluster may say that it is stable.
START_TIMEOUT = 300.0
#: Descriptors below which its nsqd refuses to start (nsqdserver/nsqd_server.go:112 @0.3.7-HA.1.13.0).
FILES = 100_000


class Programs(NamedTuple):
    """Paths of the three programs."""

    nsqd: str
    nsqlookupd: str
    etcd: str


def programs() -> Programs | None:
    """Return where they are; None where one is missing."""
    found = [shutil.which(os.environ.get(name, "")) for name in ("GNSQ_YOUZAN_NSQD", "GNSQ_YOUZAN_NSQLOOKUPD")]
    found.append(servers.find_program("etcd", "GNSQ_ETCD"))
    return Programs(*found) if all(found) else None  # type: ignore[arg-type]


class Node(servers.Process):
    """One of the processes: its ports are given, and it has started when it answers HTTP."""

    def __init__(self, program: str, arguments: list[str], log: Path, http: str, health: str) -> None:
        super().__init__(program, arguments, log)
        self.http_address, self._health = http, health

    def start(self) -> None:
        """Start it and return when it answers."""
        with many_files():
            self.spawn([self.program, *self.arguments])
        until(self._answers, f"{self.program} does not answer; its log is {self.log}")

    def _answers(self) -> bool:
        assert self.is_running(), self.log.read_text(errors="replace")[-2000:]
        try:
            return servers.http_call(self.http_address, "GET", self._health).status == 200
        except OSError:
            return False


@contextmanager
def many_files() -> Iterator[None]:
    """Let what is started meanwhile open as many files as its nsqd insists on, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def until(done: Callable[[], bool], what: str) -> None:
    """Return when *done* says so; raises RuntimeError."""
    limit = time.monotonic() + START_TIMEOUT
    while not done():
        if time.monotonic() > limit:
            raise RuntimeError(what)
        time.sleep(0.1)


@contextmanager
def youzan_cluster(folder: Path, nodes: int = 2) -> Iterator[str]:
    """Run a cluster of *nodes* nsqds and yield its nsqlookupd's HTTP address, once it knows them all."""
    with youzan_nodes(folder, nodes) as (lookupd, _):
        yield lookupd


@contextmanager
def youzan_nodes(folder: Path, nodes: int) -> Iterator[tuple[str, dict[str, Node]]]:
    """Likewise; the nsqds are yielded too, by their HTTP addresses."""
    found = programs()
    if found is None:
        raise servers.MissingServer("Youzan's nsqd, nsqlookupd or etcd")
    with ExitStack() as stack:

        def start(name: str, program: str, health: str, http: str, *arguments: str) -> Node:
            home = folder / name
            home.mkdir()
            given = [argument.replace("HOME", str(home)) for argument in arguments]
            node = Node(program, given, folder / f"{name}.log", http, health)
            stack.callback(node.stop)
            node.start()
            return node

        etcd, peer = (f"127.0.0.1:{servers.free_port()}" for _ in range(2))
        own = [f"--listen-client-urls=http://{etcd}", f"--advertise-client-urls=http://{etcd}"]
        own += [f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"]
        own += [f"--initial-cluster=default=http://{peer}", "--data-dir=HOME", "--enable-v2=true"]
        start("etcd", found.etcd, "/version", etcd, *own)

        def member(http: str) -> list[str]:
            ports = [servers.free_port() for _ in range(2)]
            return [
                *("--broadcast-interface=lo", "--broadcast-address=127.0.0.1", "--log-dir=HOME"),
                *("--cluster-id=gnsq-lite-tests", f"--cluster-leadership-addresses=http://{etcd}"),
                *(f"--http-address={http}", f"--rpc-port={ports[0]}", f"--metric-address=127.0.0.1:{ports[1]}"),
            ]

        lookupd, tcp = (f"127.0.0.1:{servers.free_port()}" for _ in range(2))
        own = [*member(lookupd), f"--tcp-address={tcp}", "--allow-write-with-nochannels=true"]
        start("nsqlookupd", found.nsqlookupd, "/ping", lookupd, *own)
        nsqds: dict[str, Node] = {}
        for number in range(nodes):
            http, own_tcp = (f"127.0.0.1:{servers.free_port()}" for _ in range(2))
            own = [*member(http), f"--tcp-address={own_tcp}", f"--lookupd-tcp-address={tcp}", "--data-path=HOME"]
            own.append(f"--worker-id={number}")
            nsqds[http] = start(f"nsqd{number}", found.nsqd, "/ping", http, *own)

        def ask(path: str) -> Any:
            return servers.http_call(lookupd, "GET", path, accept="application/vnd.nsq; version=1.0").json()

        until(lambda: len(ask("/nodes")["producers"] or ()) == nodes, "the nsqlookupd does not know its nsqds")
        # Until it is stable it moves no leader.  It looks once a minute, and not before there is a topic.
        servers.http_call(lookupd, "POST", "/topic/create?topic=first&partition_num=1&replicator=1")
        until(lambda: ask("/cluster/stats")["stable"], "the nsqlookupd says that its cluster is not stable")
        yield lookupd, nsqds
