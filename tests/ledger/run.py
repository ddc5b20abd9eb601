"""One run: servers, proxies, Readers, a worker process, Writers, faults; then the audit."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gnsq_lite import Reader
from gnsq_lite.errors import NSQError
from tests import certs, servers
from tests.ledger import clock
from tests.ledger.book import Audit, Auditor, Log, Sent, read_notes
from tests.ledger.front import TLSFront
from tests.ledger.publisher import Publisher
from tests.ledger.wire import Witness
from tests.ledger.worker import QUICK, make_reader, tls_options
from tests.proxy import Proxy

MSG_TIMEOUT = 2.0
NODES = 2
#: Seconds after the last fault, or since nsqd last had fewer messages, within which it must have fewer: on a machine
#: that is busy too.
SETTLE = 40.0

FAULTS = [
    *("reset", "half_open", "black_hole", "cut", "cut", "refuse", "dribble", "delay"),
    *("unanswered", "unanswered", "nsqd", "lookupd", "worker", "stop", "handshake", "handshake"),
]
#: Seconds without a further message confirmed after which publishing counts as stuck.
STUCK = 60.0
#: Publishes that each nsqd loses, connection and all, before any other fault: a Writer that takes them for sent is
#: caught by every seed.
SURE = 2
#: Seconds for which a process is stopped: longer than nsqd, or a client, waits for the other's heartbeats.
PAUSE = 2.5 * float(QUICK["heartbeat_interval"])
#: Kinds of false notes of a client, so that a run can show that the audit notices them.
LIES = ("fin", "ok", "twice")
#: Bytes that a load balancer sends to a client that begins TLS when no nsqd is left.
BALANCER = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


class Setup(NamedTuple):
    """What a seed runs with: all of it in 30 seeds that follow each other."""

    #: Whether the clients speak TLS.
    tls: bool
    #: Whether the worker process is monkey-patched.
    patched: bool
    handler_pool: str

    @classmethod
    def of(cls, seed: int) -> Setup:
        """Return that of *seed*."""
        return cls(seed % 3 == 0, seed % 2 == 0, "thread" if seed % 5 < 3 else "auto")


class WorkerProcess:
    """A consuming process that is killed and started again.  posix_spawn: neither forks nor knows gevent."""

    def __init__(self, arguments: list[str], patched: bool) -> None:
        gevent = ["-m", "gevent.monkey", "--module"] if patched else ["-m"]
        self._arguments = [sys.executable, *gevent, "tests.ledger.worker", *arguments]
        self.pid: int | None = None

    def ensure(self) -> bool:
        """Start it where it does not run; return whether it had ended by itself."""
        ended = False
        if self.pid is not None:
            try:
                done, _ = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by gevent's handler of SIGCHLD
                done = self.pid
            if done:
                self.pid, ended = None, True
        if self.pid is None:
            self.pid = os.posix_spawn(sys.executable, self._arguments, {**os.environ, "PYTHONUNBUFFERED": "1"})
        return ended

    def signal(self, number: int) -> None:
        """Send it a signal; it may just have ended."""
        self.ensure()
        assert self.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once and wait."""
        if self.pid is None:
            return
        os.kill(self.pid, signal.SIGKILL)
        try:
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                time.sleep(0.002)
        except ChildProcessError:
            pass
        self.pid = None


class Run:
    """The parts of one run."""

    def __init__(
        self,
        seed: int,
        cluster: servers.Cluster,
        proxies: list[Proxy],
        log: Log,
        worker: WorkerProcess,
        pauses: tuple[float, ...],
    ) -> None:
        self.rng = random.Random(f"{seed}-faults")
        self.cluster, self.proxies, self.log, self.worker = cluster, proxies, log, worker
        self._pauses = pauses
        self._clock_rng = random.Random(f"{seed}-clock")
        self._ahead = self._clock_rng.random() < 0.5
        self.stopping = threading.Event()
        self.struck = 0
        self.failure: BaseException | None = None

    def strike_until_stopped(self) -> None:
        """Cause faults, one after the other, until the run stops; then undo them."""
        try:
            while not self.stopping.wait(self.rng.uniform(0.02, 0.15)):
                self._strike(self.rng.choice(FAULTS), self.rng.randrange(NODES), self.rng.uniform(0.02, 0.3))
                self.worker.ensure()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            for proxy in self.proxies:
                proxy.clear()
            self.worker.ensure()

    def _strike(self, fault: str, node: int, seconds: float) -> None:
        self.struck += 1
        self.jump()
        proxy = self.proxies[node]
        if fault == "nsqd":
            self._restart_nsqd(node, seconds)
        elif fault == "lookupd":
            self._restart_lookupd(seconds)
        elif fault == "worker":
            self.worker.kill()
            self.log.event("killed", "child", time.monotonic(), worker="child")
        elif fault == "stop":
            self._freeze(node)
        elif fault == "handshake" and proxy.front is not None:
            self._restart_nsqd_within_a_handshake(node, seconds)
        elif fault == "unanswered" and self.cluster.kind == "embedded":
            self._leave_unanswered(node, seconds)
        else:
            self._disturb(proxy, fault)
            time.sleep(seconds)
            if proxy.holding:
                # At times long enough to be noticed by silence alone.  What was swallowed never comes: TCP has no gaps.
                time.sleep(self.rng.choice([0.0, 0.0, 2.5]))
                proxy.reset()
            proxy.clear()

    def jump(self) -> None:
        """Let the wall clock be hours off, by turns backward and forward, until the next jump."""
        self._ahead = not self._ahead
        if clock.jumps():
            clock.jump(self._clock_rng.randrange(600, 6 * 3600) * (1 if self._ahead else -1))

    def _leave_unanswered(self, node: int, seconds: float) -> None:
        """End connections at a command, carried out or not, without an answer."""
        faults = self.cluster.nodes[node].node.faults  # type: ignore[attr-defined]
        for verb in ("PUB", "MPUB", "FIN", "REQ", "RDY", "SUB"):
            faults.disconnect_on(verb, carry_out=self.rng.random() < 0.5, times=self.rng.choice([0, 1, 2]))
        time.sleep(seconds)
        faults.clear()

    def _disturb(self, proxy: Proxy, fault: str) -> None:
        if fault == "half_open":
            proxy.half_open()
        elif fault == "black_hole":
            proxy.holding = True
        elif fault == "dribble":
            proxy.chunk = 1
        elif fault == "delay":
            proxy.delay = 0.05
        else:
            proxy.refusing = fault == "refuse"  # and "unanswered" and "handshake" where there is no such thing: a reset
            proxy.cut_after = self.rng.randrange(300, 3000) if fault == "cut" else None
            proxy.reset()

    def _restart_nsqd(self, node: int, seconds: float, meanwhile: Callable[[], object] = bool) -> None:
        handle = self.cluster.nodes[node]
        self.log.event("down", handle.tcp_address, time.monotonic(), worker="")
        handle.kill()
        meanwhile()
        self.log.event("down", handle.tcp_address, time.monotonic(), worker="")
        time.sleep(seconds)
        handle.restart()

    def _freeze(self, node: int) -> None:
        """Stop the worker process, or a real nsqd, and let it go on."""
        nsqd = getattr(self.cluster.nodes[node], "process", None) if self.rng.random() < 0.5 else None
        process, who = (self.worker, "child") if nsqd is None else (nsqd, self.cluster.nodes[node].tcp_address)
        process.signal(signal.SIGSTOP)
        self.log.event("frozen", who, time.monotonic(), worker="")
        time.sleep(self.rng.choice(self._pauses))
        self.log.event("thawed", who, time.monotonic(), worker="")
        process.signal(signal.SIGCONT)

    def _restart_nsqd_within_a_handshake(self, node: int, seconds: float) -> None:
        """Kill nsqd when a client has begun TLS; at times a balancer answers in its place."""
        proxy, front = self.proxies[node], self.proxies[node].front
        assert isinstance(front, TLSFront)
        front.retort = self.rng.choice([b"", BALANCER])
        front.stalled, front.stalling = 0, True
        proxy.reset()
        deadline = time.monotonic() + 1.0
        while not front.stalled and time.monotonic() < deadline:
            time.sleep(0.005)
        try:
            self._restart_nsqd(node, seconds, front.let_go if front.retort else proxy.reset)
        finally:
            front.let_go()

    def _restart_lookupd(self, seconds: float) -> None:
        lookupd: Any = (
            self.cluster.broker.lookupds[0] if self.cluster.kind == "embedded" else self.cluster.lookupd.process
        )  # type: ignore[attr-defined]
        lookupd.stop()
        time.sleep(seconds)
        (lookupd.restart if self.cluster.kind == "embedded" else lookupd.start)()


@contextmanager
def cluster_of(kind: str, folder: Path) -> Iterator[servers.Cluster]:
    """Start the servers.  A real nsqd writes each message to its disk before it sends OK."""
    if kind == "embedded":
        with servers.embedded_cluster(NODES, msg_timeout=MSG_TIMEOUT) as cluster:
            yield cluster
    else:
        options = {"msg_timeout": MSG_TIMEOUT, "mem_queue_size": 0, "sync_every": 1}
        with servers.real_cluster(folder, NODES, **options) as cluster:
            yield cluster


def make_proxies(cluster: servers.Cluster, setup: Setup, witness: Witness, folder: Path) -> tuple[list[Proxy], str]:
    """Start a proxy before each nsqd, read by *witness*; return the proxies and the CA file, "" without TLS."""
    made = certs.make(folder) if setup.tls else None
    proxies = [Proxy(handle.tcp_address) for handle in cluster.nodes]
    for proxy, handle in zip(proxies, cluster.nodes, strict=True):
        proxy.lose(b"PUB ", SURE)
        witness.listen(proxy, handle.tcp_address)
        if made is not None:
            proxy.front = TLSFront(made)
    return proxies, made.ca if made is not None else ""


def run(
    seed: int,
    messages: int,
    folder: Path,
    kind: str = "embedded",
    seconds: float = 2.0,
    pause: float | None = None,
    lie: str = "",
    threads: int = 0,
) -> Audit:
    """Run *messages* through faults of *seed* and return what became of them.

    *pause*: seconds for which each process that is stopped is stopped; None: at times PAUSE.  *lie*: of LIES.
    """
    began = time.monotonic()
    result = Audit(seed, kind, messages)
    setup, witness = Setup.of(seed), Witness(seed)
    notes, topic = str(folder / f"notes-{seed}-{kind}"), f"ledger_{seed}"
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(kind, folder))
        for handle in cluster.nodes:
            handle.prepare(topic, "ch")
        proxies, ca = make_proxies(cluster, setup, witness, folder)
        aliases = {p.address: h.tcp_address for p, h in zip(proxies, cluster.nodes, strict=True)}
        for proxy in proxies:
            stack.enter_context(proxy)
        log = Log(notes, "here")
        stack.callback(log.close)
        common: dict[str, Any] = {"handler_pool": setup.handler_pool, "lie": lie}
        told = {**common, "ca": ca, "nsqd_tcp_addresses": list(aliases)}
        child = WorkerProcess([topic, notes, "child", str(seed), str(MSG_TIMEOUT), json.dumps(told)], setup.patched)
        stack.callback(child.kill)
        child.ensure()
        reader = make_reader(
            topic,
            log,
            seed,
            MSG_TIMEOUT,
            False,
            lookupd_http_addresses=cluster.lookupd_http_address,
            lookupd_poll_interval=1.0,
            address_map={real: proxy for proxy, real in aliases.items()},
            **common,
            **tls_options(ca),
        )
        stack.enter_context(reader)
        faults = Run(seed, cluster, proxies, log, child, (0.3, 0.3, PAUSE) if pause is None else (pause,))
        half = messages // 2
        publishers = [
            Publisher(topic, seed, numbers, list(aliases), seconds, lie, threads, **tls_options(ca))
            for numbers in (range(half), range(half, messages))
        ]
        publish_under(faults, publishers)
        result.left = settle(cluster, topic, child)
        result.faults = faults.struck
        note_an_end(reader, log)
        if clock.jumps():
            clock.jump(0)
    sent: dict[int, Sent] = {}
    for publisher in publishers:
        sent.update(publisher.sent)
        result.unexplained += publisher.early
    handled, events = read_notes(notes)
    auditor = Auditor(events, aliases, MSG_TIMEOUT)
    auditor.audit(result, handled, sent)
    auditor.hear(result, handled, sent, witness)
    result.seconds = time.monotonic() - began
    return result


def note_an_end(reader: Reader, log: Log) -> None:
    """Note it where *reader* has ended by itself."""
    try:
        if reader.join(0.0):
            log.event("ended", "without an error", time.monotonic())
    except NSQError as error:
        log.event("ended", repr(error), time.monotonic())


def publish_under(faults: Run, publishers: list[Publisher]) -> None:
    """Return when everything is published and the faults are over; raises what went wrong with either."""
    striking = threading.Thread(target=faults.strike_until_stopped)
    threads = [threading.Thread(target=publisher.run, daemon=True) for publisher in publishers]
    for thread in (striking, *threads):
        thread.start()
    try:
        wait_for_publishers(publishers, threads)
    finally:
        faults.stopping.set()
        striking.join()
    for failure in (faults.failure, *(publisher.failure for publisher in publishers)):
        if failure is not None:
            raise failure


def wait_for_publishers(publishers: list[Publisher], threads: list[threading.Thread]) -> None:
    """Return when all numbers are confirmed; raises where none is for a long time."""
    confirmed, since = 0, time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
            now = sum(len(publisher.confirmed_at) for publisher in publishers)
            if now != confirmed:
                confirmed, since = now, time.monotonic()
            if time.monotonic() - since > STUCK:
                raise RuntimeError(f"publishing is stuck: {confirmed} numbers are confirmed")


def settle(cluster: servers.Cluster, topic: str, child: WorkerProcess) -> int:
    """Wait until no nsqd has a message of *topic*; return how many there are when they become fewer no more."""
    least, deadline = sys.maxsize, time.monotonic() + SETTLE
    while True:
        child.ensure()
        left = 0
        for node in cluster.nodes:
            found = node.stats(topic)
            channel = next(iter(found["channels"]), {})
            left += found["depth"] + channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        if left < least:
            least, deadline = left, time.monotonic() + SETTLE
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
