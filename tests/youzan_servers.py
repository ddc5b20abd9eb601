"""A cluster of Youzan's servers for tests: etcd, an nsqlookupd and nsqds, on ports of 127.0.0.1, ended with the test.

The programs come from ``GNSQ_YOUZAN_NSQD`` and ``GNSQ_YOUZAN_NSQLOOKUPD``; etcd, which must speak its API v2 (3.4 and
3.5 do), from PATH or ``GNSQ_ETCD``.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests import servers

#: Seconds until a cluster may say that it is stable.
START_TIMEOUT = 300.0
#: Descriptors below which its nsqd refuses to start (nsqdserver/nsqd_server.go:112 @0.3.7-HA.1.13.0), and what it says
#: then.
FILES = 100_000
TOO_FEW_FILES = "file limit is too low"


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
        self._said = 0  # characters of its log that were there before

    def start(self) -> None:
        """Start it and return when it answers."""
        self._said = len(self._log_text())
        self._spawn()
        until(self._answers, f"{self.program} does not answer; its log is {self.log}")

    def _spawn(self) -> None:
        with many_files():
            self.spawn([self.program, *self.arguments])

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _answers(self) -> bool:
        if not self.is_running():
            said = self._log_text()[self._said :]
            if "address already in use" in said:  # a connection of somebody else's has that port for a while
                self._said += len(said)
                time.sleep(0.5)
                self._spawn()
                return False
            if TOO_FEW_FILES in said:
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                raise servers.MissingServer(f"{FILES} descriptors for {self.program}: the hard limit here is {hard}")
            raise RuntimeError(said[-2000:])
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
    """Wait until *done* returns true.  Raises RuntimeError."""
    limit = time.monotonic() + START_TIMEOUT
    while not done():
        if time.monotonic() > limit:
            raise RuntimeError(what)
        time.sleep(0.1)


@dataclass
class RealCluster:
    """Its servers, which a test may stop, kill and start again."""

    lookupds: list[Node]
    nsqds: list[Node]

    @property
    def addresses(self) -> list[str]:
        """HTTP addresses of its nsqlookupds."""
        return [lookupd.http_address for lookupd in self.lookupds]

    def ask(self, path: str, method: str = "GET") -> Any:
        """Ask the first nsqlookupd that answers."""
        for address in self.addresses:
            try:
                return servers.http_call(address, method, path, accept="application/vnd.nsq; version=1.0").json()
            except OSError:
                continue
        raise RuntimeError("no nsqlookupd answers")

    def leading(self) -> Node:
        """Return the nsqlookupd that leads the others.  Raises StopIteration while none does."""
        port = self.ask("/listlookup")["lookupdleader"]["HttpPort"]
        return next(each for each in self.lookupds if each.http_address.endswith(f":{port}"))

    def is_stable(self) -> bool:
        """Return whether each partition has a leader and its replicas.  Only the leading nsqlookupd lists this."""
        try:
            answer = servers.http_call(self.leading().http_address, "GET", "/cluster/stats")
        except (OSError, StopIteration):  # it has died, or none leads yet
            return False
        return answer.status == 200 and bool(answer.json()["stable"])

    def at(self, distributed_id: str) -> Node:
        """Return the nsqd that a lookup names so."""
        port = distributed_id.split(":")[2]
        return next(each for each in self.nsqds if f"--tcp-address=127.0.0.1:{port}" in each.arguments)

    def mend(self) -> None:
        """Start again whatever is stopped, and return when all nsqds are known and nothing moves any more."""
        for node in (*self.lookupds, *self.nsqds):
            node.signal(signal.SIGCONT)
            if not node.is_running():
                node.start()
        until(lambda: len(self.ask("/nodes")["producers"] or ()) == len(self.nsqds), "an nsqd is not known again")
        until(self.is_stable, "the cluster is not stable again")


@contextmanager
def youzan_cluster(folder: Path, nodes: int = 2, lookupds: int = 1) -> Iterator[RealCluster]:
    """Run a cluster of *nodes* nsqds and yield it once its nsqlookupds know them all.  Raises MissingServer."""
    found = programs()
    if found is None:
        raise servers.MissingServer("Youzan's nsqd, nsqlookupd or etcd")
    with ExitStack() as stack:

        def start(name: str, program: str, health: str, http: str, *arguments: str) -> Node:
            home = folder / name
            home.mkdir()
            given = [argument.replace("HOME", str(home)) for argument in arguments]
            node = Node(program, given, folder / f"{name}.log", http, health)
            stack.callback(node.kill)
            node.start()
            return node

        def address() -> str:
            return f"127.0.0.1:{servers.free_port()}"

        etcd, peer = address(), address()
        own = [f"--listen-client-urls=http://{etcd}", f"--advertise-client-urls=http://{etcd}"]
        own += [f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"]
        own += [f"--initial-cluster=default=http://{peer}", "--data-dir=HOME", "--enable-v2=true"]
        start("etcd", found.etcd, "/version", etcd, *own)

        def member(http: str) -> list[str]:
            return [
                *("--broadcast-interface=lo", "--broadcast-address=127.0.0.1", "--log-dir=HOME"),
                *("--cluster-id=gnsq-lite-tests", f"--cluster-leadership-addresses=http://{etcd}"),
                *(f"--http-address={http}", f"--rpc-port={servers.free_port()}", f"--metric-address={address()}"),
            ]

        cluster = RealCluster([], [])
        tcps = [address() for _ in range(lookupds)]
        for number, tcp in enumerate(tcps):
            http = address()
            own = [*member(http), f"--tcp-address={tcp}", "--allow-write-with-nochannels=true"]
            cluster.lookupds.append(start(f"nsqlookupd{number}", found.nsqlookupd, "/ping", http, *own))
        for number in range(nodes):
            http = address()
            own = [*member(http), f"--tcp-address={address()}", *(f"--lookupd-tcp-address={tcp}" for tcp in tcps)]
            own += ["--data-path=HOME", f"--worker-id={number}"]
            cluster.nsqds.append(start(f"nsqd{number}", found.nsqd, "/ping", http, *own))
        until(lambda: len(cluster.ask("/nodes")["producers"] or ()) == nodes, "the nsqlookupd does not know its nsqds")
        # Until it is stable it moves no leader.  It looks once a minute, and not before there is a topic.
        create = "/topic/create?topic=first&partition_num=1&replicator=1"
        servers.http_call(cluster.leading().http_address, "POST", create)
        until(cluster.is_stable, "the nsqlookupd says that its cluster is not stable")
        yield cluster
