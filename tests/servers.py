"""Servers for tests: real nsqd and nsqlookupd, and the embedded broker, behind one handle.

The programs come from PATH or from ``GNSQ_NSQD``, ``GNSQ_NSQLOOKUPD``; Youzan's are in :mod:`tests.youzan_servers`.
They listen on ports of the system's choice, read back from their log.  Only processes started here are ever signalled.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds a server may take to listen, or to end after SIGTERM.  Generous: the machine may be busy.
START_TIMEOUT = 20.0
STOP_TIMEOUT = 20.0

_LISTENING = re.compile(r"(TCP|HTTPS?): listening on \S*?:(\d+)\s*$", re.M)
_DURATION = re.compile(r"(timeout|interval|lifetime)$")
#: Options of the embedded broker that are flags of nsqlookupd, not of nsqd.
LOOKUPD_OPTIONS = frozenset({"inactive_producer_timeout", "tombstone_lifetime"})


class MissingServer(Exception):
    """A real server is wanted and its program is nowhere."""


def find_program(name: str, variable: str) -> str | None:
    """Return the path of *name*: what *variable* names, else the one on PATH, else None."""
    given = os.environ.get(variable)
    if given:
        return shutil.which(given)
    return shutil.which(name)


def nsqd_program() -> str | None:
    """Return the path of the real nsqd, or None."""
    return find_program("nsqd", "GNSQ_NSQD")


def nsqlookupd_program() -> str | None:
    """Return the path of the real nsqlookupd, or None."""
    return find_program("nsqlookupd", "GNSQ_NSQLOOKUPD")


def real_servers_required() -> bool:
    """Whether the absence of real servers is a failure (``GNSQ_REQUIRE_NSQD=1``)."""
    return os.environ.get("GNSQ_REQUIRE_NSQD", "") not in ("", "0")


def flags(options: dict[str, Any]) -> list[str]:
    """Return nsqd's flags for *options*: seconds become milliseconds, sequences are repeated flags."""
    found = []
    for name, value in options.items():
        values = value if isinstance(value, (tuple, list)) else [value]
        for one in values:
            if isinstance(one, bool):
                text = "true" if one else "false"
            elif _DURATION.search(name) and isinstance(one, (int, float)):
                text = f"{one * 1000:.3f}ms"
            else:
                text = str(one)
            found.append(f"--{name.replace('_', '-')}={text}")
    return found


class Response(NamedTuple):
    """An HTTP response, read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def http_call(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> Response:
    """Send one HTTP request to ``host:port`` and return the whole response; names of headers in lower case."""
    host, _, port = address.rpartition(":")
    connection = (
        http.client.HTTPConnection(host, int(port), timeout=START_TIMEOUT)
        if tls is None
        else http.client.HTTPSConnection(host, int(port), timeout=START_TIMEOUT, context=tls)
    )
    try:
        connection.request(method, path, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


class Process:
    """One real server: a child process whose log goes to a file.

    It is started with posix_spawn, which neither forks nor depends on gevent's idea of child processes.
    """

    def __init__(self, program: str, arguments: list[str], log: Path) -> None:
        self.program, self.arguments, self.log = program, arguments, log
        self.pid: int | None = None
        self.ports: dict[str, int] = {}

    def start(self) -> None:
        """Start it and return when each of its ports listens; on the ports of last time, if there was one."""
        offset = self.log.stat().st_size if self.log.exists() else 0
        again = [f"--{kind.lower()}-address=127.0.0.1:{port}" for kind, port in self.ports.items()]
        fresh = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
        if any(argument.startswith("--tls-cert=") for argument in self.arguments):
            fresh.append("--https-address=127.0.0.1:0")
        wanted = {argument.split("-address")[0].lstrip("-").upper() for argument in again or fresh}
        argv = [self.program, *self.arguments, *(again or fresh)]
        self.spawn(argv)
        limit = time.monotonic() + START_TIMEOUT
        while True:
            text = self.log.read_bytes()[offset:].decode("utf-8", "replace") if self.log.exists() else ""
            found = {kind: int(port) for kind, port in _LISTENING.findall(text)}
            if wanted <= set(found):
                self.ports = {kind: found[kind] for kind in sorted(wanted)}
                return
            running = self.is_running()
            if not running and "address already in use" in text and time.monotonic() < limit:
                time.sleep(0.1)  # a connection of somebody else's has had that port given meanwhile
                offset = self.log.stat().st_size
                self.spawn(argv)
            elif not running or time.monotonic() > limit:
                self.kill()
                raise RuntimeError(f"{argv} does not listen:\n{text}")
            time.sleep(0.005)

    def spawn(self, argv: list[str]) -> None:
        """Start the server and append its output to the log."""
        assert self.pid is None, "it is running"
        create = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), create, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self.pid = os.posix_spawn(self.program, argv, os.environ, file_actions=actions, setpgroup=0)

    def is_running(self) -> bool:
        """Whether the process lives; one that ended is reaped."""
        if self.pid is None:
            return False
        try:
            done, _ = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # reaped by gevent's handler of SIGCHLD
            done = self.pid
        if done:
            self.pid = None
        return not done

    def stop(self) -> None:
        """End it in order (SIGTERM) and wait; SIGKILL when that takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait."""
        self._end(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal, SIGSTOP for one, and return at once."""
        if self.is_running():
            assert self.pid is not None
            os.kill(self.pid, number)

    def _end(self, number: int) -> None:
        limit = time.monotonic() + STOP_TIMEOUT
        self.signal(number)
        while self.is_running():
            time.sleep(0.002)
            if time.monotonic() > limit:
                self.signal(signal.SIGKILL)

    def address(self, kind: str) -> str:
        """Return the ``host:port`` of "TCP", "HTTP" or "HTTPS"."""
        return f"127.0.0.1:{self.ports[kind]}"


class ServerHandle:
    """An nsqd, embedded or real, as tests see it.  ``kind`` is "embedded" or "nsqd"."""

    kind: str
    tcp_address: str
    http_address: str
    #: Address of HTTPS; None without TLS.
    https_address: str | None = None

    @property
    def host(self) -> str:
        """Host of :attr:`tcp_address`."""
        return self.tcp_address.rpartition(":")[0]

    @property
    def tcp_port(self) -> int:
        """Port of :attr:`tcp_address`."""
        return int(self.tcp_address.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        """Port of :attr:`http_address`."""
        return int(self.http_address.rpartition(":")[2])

    def http(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Call its HTTP API."""
        return http_call(self.http_address, method, path, body, **headers)

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Return ``GET /stats?format=json``; with *topic* that topic's part ({} where there is none), with *channel*
        the channel's."""
        found: dict[str, Any] = self.http("GET", "/stats?format=json").json()
        if topic is not None:
            found = next((part for part in found["topics"] or () if part["topic_name"] == topic), {})
        if channel is not None:
            found = next((part for part in found.get("channels", ()) if part["channel_name"] == channel), {})
        return found

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish each body as one message, with one HTTP request."""
        data = len(bodies).to_bytes(4, "big") + b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        assert self.http("POST", f"/mpub?binary=true&topic={topic.replace('#', '%23')}", data).body == b"OK"

    def prepare(self, topic: str, *channels: str) -> None:
        """Make a topic and channels whose time-outs and delays are noticed at once.

        nsqd looks for new ones every 5 s only, but knows those it starts with (nsqd/nsqd.go, queueScanLoop @v1.3.0).
        """
        assert self.http("POST", f"/topic/create?topic={topic}").status == 200
        for channel in channels:
            assert self.http("POST", f"/channel/create?topic={topic}&channel={channel}").status == 200

    def stop(self) -> None:
        """Shut down in order (SIGTERM)."""
        raise NotImplementedError

    def kill(self) -> None:
        """Die at once (SIGKILL): every connection is cut; a real nsqd loses what it had in memory."""
        raise NotImplementedError

    def restart(self) -> None:
        """Start again after stop() or kill(), on the same ports and data path."""
        raise NotImplementedError


class RealNsqd(ServerHandle):
    """A real nsqd with a data path of its own."""

    kind = "nsqd"

    def __init__(self, folder: Path, name: str = "nsqd", lookupds: tuple[str, ...] = (), **options: Any) -> None:
        program = nsqd_program()
        if program is None:
            raise MissingServer("nsqd")
        data = folder / f"{name}-data"
        data.mkdir(exist_ok=True)
        options = {"broadcast_address": "127.0.0.1", "lookupd_tcp_address": lookupds, **options}
        options["auth_http_address"] = options.pop("auth_http_addresses", ())
        options.pop("queue_scan_interval", None)  # no flag of nsqd; 100 ms there
        self.process = Process(program, [f"--data-path={data}", *flags(options)], folder / f"{name}.log")
        self.process.start()

    @property
    def tcp_address(self) -> str:  # type: ignore[override]
        return self.process.address("TCP")

    @property
    def http_address(self) -> str:  # type: ignore[override]
        return self.process.address("HTTP")

    @property
    def https_address(self) -> str | None:  # type: ignore[override]
        return self.process.address("HTTPS") if "HTTPS" in self.process.ports else None

    def prepare(self, topic: str, *channels: str) -> None:
        super().prepare(topic, *channels)
        self.stop()
        self.restart()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        self.process.start()


class RealLookupd:
    """A real nsqlookupd."""

    def __init__(self, folder: Path, name: str = "nsqlookupd", **options: Any) -> None:
        program = nsqlookupd_program()
        if program is None:
            raise MissingServer("nsqlookupd")
        arguments = ["--broadcast-address=127.0.0.1", *flags(options)]
        self.process = Process(program, arguments, folder / f"{name}.log")
        self.process.start()

    @property
    def tcp_address(self) -> str:
        """``host:port`` that nsqds register at."""
        return self.process.address("TCP")

    @property
    def http_address(self) -> str:
        """``host:port`` of its HTTP API."""
        return self.process.address("HTTP")


class EmbeddedNsqd(ServerHandle):
    """One node of an embedded broker."""

    kind = "embedded"

    def __init__(self, node: Any) -> None:
        self.node = node

    @property
    def tcp_address(self) -> str:  # type: ignore[override]
        return str(self.node.nsqd_tcp_address)

    @property
    def http_address(self) -> str:  # type: ignore[override]
        return str(self.node.http_address)

    @property
    def https_address(self) -> str | None:  # type: ignore[override]
        address = str(self.node.https_address)
        return None if address.endswith(":0") else address

    def stop(self) -> None:
        self.node.stop()

    def kill(self) -> None:
        self.node.kill()

    def restart(self) -> None:
        self.node.restart()


class Cluster:
    """nsqds and the nsqlookupd they register at."""

    kind: str
    nodes: list[ServerHandle]
    lookupd_http_address: str

    def lookupd_http(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Call nsqlookupd's HTTP API."""
        return http_call(self.lookupd_http_address, method, path, body, **headers)

    def wait_registered(self, topic: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait until lookupd lists *count* producers of *topic*."""
        limit = time.monotonic() + timeout
        while True:
            answer = self.lookupd_http("GET", f"/lookup?topic={topic.replace('#', '%23')}")
            found = len(answer.json()["producers"]) if answer.status == 200 else 0
            if found == count:
                return
            assert time.monotonic() < limit, f"lookupd lists {found} producers of {topic}, not {count}"
            time.sleep(0.01)


class EmbeddedCluster(Cluster):
    """A broker's nsqlookupd and nsqds."""

    kind = "embedded"

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.nodes = [EmbeddedNsqd(node) for node in broker.nodes]

    @property
    def lookupd_http_address(self) -> str:  # type: ignore[override]
        return str(self.broker.lookupd_http_address)


class RealCluster(Cluster):
    """A real nsqlookupd and real nsqds."""

    kind = "nsqd"

    def __init__(self, lookupd: RealLookupd, nodes: list[ServerHandle]) -> None:
        self.lookupd, self.nodes = lookupd, nodes
        self.lookupd_http_address = lookupd.http_address


@contextmanager
def embedded_cluster(nodes: int = 1, **options: Any) -> Iterator[Cluster]:
    """Run an embedded broker with *nodes* nsqds and a lookupd."""
    from gnsq_lite.broker import Broker

    for address in options.pop("auth_http_addresses", ()):
        options["auth"] = f"http://{address}/auth"
    with Broker(nsqds=nodes, **options) as broker:
        yield EmbeddedCluster(broker)


@contextmanager
def real_cluster(folder: Path, nodes: int = 1, **options: Any) -> Iterator[Cluster]:
    """Run a real nsqlookupd and *nodes* real nsqds."""
    mine = {name: options.pop(name) for name in LOOKUPD_OPTIONS & set(options)}
    lookupd = RealLookupd(folder, **mine)
    started: list[ServerHandle] = []
    try:
        for number in range(nodes):
            started.append(RealNsqd(folder, f"nsqd{number}", (lookupd.tcp_address,), **options))
        yield RealCluster(lookupd, started)
    finally:
        for node in started:
            node.kill()
        lookupd.process.kill()


@contextmanager
def embedded_nsqd(**options: Any) -> Iterator[ServerHandle]:
    """Run one embedded nsqd."""
    with embedded_cluster(**options) as cluster:
        yield cluster.nodes[0]


@contextmanager
def real_nsqd(folder: Path, name: str = "nsqd", **options: Any) -> Iterator[ServerHandle]:
    """Run one real nsqd without a lookupd."""
    node = RealNsqd(folder, name, **options)
    try:
        yield node
    finally:
        node.kill()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def refusing_port() -> Iterator[int]:
    """Reserve a TCP port of 127.0.0.1 on which no process listens or can listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
