"""Starts the servers: nsqd if it is installed, or else the embedded broker; and a proxy that delays."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DELAY = Path(__file__).with_name("delay.py")
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")


_CORES = sorted(os.sched_getaffinity(0))
#: The client has one core, and servers have the others.  On a shared core wake-ups cost a third, and figures of one
#: message at a time have two peaks.
CLIENT_CORES = frozenset(_CORES[-1:])
SERVER_CORES = frozenset(_CORES[:-1] or _CORES)


@contextmanager
def on_cores(cores: Collection[int] | None) -> Iterator[None]:
    """Start processes on *cores* inside the block.  None means any core."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def find_nsqd() -> str | None:
    """Return the path of nsqd from ``GNSQ_NSQD`` or PATH, or None."""
    return os.environ.get("GNSQ_NSQD") or shutil.which("nsqd")


def multipublish(sock: socket.socket, where: bytes, messages: int, body: bytes) -> None:
    """Publish *messages* in batches of a thousand on a new connection.  *where* is a topic, or topic and partition."""
    one = struct.pack(">I", len(body)) + body
    step = 1000
    sock.sendall(b"  V2")
    for done in range(0, messages, step):
        count = min(step, messages - done)
        bodies = struct.pack(">I", count) + one * count
        sock.sendall(b"MPUB %s\n" % where + struct.pack(">I", len(bodies)) + bodies)
        answer = b""
        while len(answer) < 10:
            answer += sock.recv(10 - len(answer))
        assert answer.endswith(b"OK"), answer


class Nsqd:
    """An nsqd on free loopback ports, with queues in memory.  Without *program* it is the embedded broker."""

    def __init__(self, program: str | None, queue: int) -> None:
        self.queue = queue
        self._data = tempfile.TemporaryDirectory(prefix="gnsq-bench-")
        self._log = open(f"{self._data.name}/log", "w+")  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [
                *([sys.executable, "-m", "gnsq_lite", "broker", "--json"] if program is None else [program]),
                *(["--nsqlookupd-http-address=127.0.0.1:0"] if program is None else [f"-data-path={self._data.name}"]),
                "--tcp-address=127.0.0.1:0",
                "--http-address=127.0.0.1:0",
                f"--mem-queue-size={queue}",
                "--msg-timeout=10m",
            ],
            stderr=self._log,
            stdout=self._log,
        )
        found = self._addresses()
        self.address, self._http = found["TCP"], found["HTTP"]
        self._topics = 0

    def _addresses(self) -> dict[str, str]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            text = Path(self._log.name).read_text()
            found = dict(_LISTENING.findall(text))
            if len(found) == 2:
                return found
            if text.startswith("{") and text.endswith("\n"):
                broker = json.loads(text.splitlines()[0])
                return {"TCP": broker["nsqd_tcp"][0], "HTTP": broker["nsqd_http"][0]}
            time.sleep(0.02)
        raise RuntimeError(f"nsqd does not start:\n{Path(self._log.name).read_text()[-2000:]}")

    def is_alive(self) -> bool:
        """Return whether nsqd runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Kill nsqd, so that it does not write its queues to the disk."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._data.cleanup()

    def cpu(self) -> float:
        """Return the CPU seconds that nsqd's threads have used."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def http(self, path: str, body: bytes | None = None) -> Any:
        """Call nsqd's HTTP interface, with POST if there is a body."""
        with urllib.request.urlopen(f"http://{self._http}{path}", data=body, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text

    def version(self) -> str:
        """Return nsqd's version."""
        return str(self.http("/info")["version"])

    def new_topic(self, *, keep: bool) -> str:
        """Create a topic with a channel or, if *keep* is false, an ephemeral topic, which drops excess messages."""
        self._topics += 1
        topic = f"bench{self._topics}" + ("" if keep else "#ephemeral")
        if keep:
            self.http(f"/topic/create?topic={topic}", b"")
            self.http(f"/channel/create?topic={topic}&channel=bench", b"")
        return topic

    def connect(self) -> socket.socket:
        """Return a plain socket connected to nsqd's TCP port."""
        host, port = self.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)))

    def fill(self, topic: str, messages: int, body: bytes) -> None:
        """Publish *messages* to the topic, and wait until they are in its channel."""
        with self.connect() as sock:
            multipublish(sock, topic.encode(), messages, body)
        deadline = time.monotonic() + 60
        while self.channel(topic)["depth"] != messages:
            assert time.monotonic() < deadline, self.channel(topic)
            time.sleep(0.02)

    def channel(self, topic: str) -> dict[str, Any]:
        """Return the statistics of the topic's only channel, and the topic's ``message_count``."""
        wanted = topic.replace("#", "%23")
        found = self.http(f"/stats?format=json&topic={wanted}")["topics"]
        if not found:
            return {}
        channels = found[0]["channels"] or [{}]
        return {**channels[0], "published": found[0]["message_count"]}

    def delete(self, topic: str) -> None:
        """Delete the topic and its messages."""
        try:
            self.http(f"/topic/delete?topic={topic.replace('#', '%23')}", b"")
        except OSError:  # nsqd may have deleted an ephemeral topic already
            pass


@contextmanager
def delayed(address: str) -> Iterator[str]:
    """Start a proxy process that delays each direction by a millisecond, and yield its address."""
    with subprocess.Popen([sys.executable, str(DELAY), address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
