"""Runs one measurement: starts nsqd and the client's process, publishes, and checks that the client did its work."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, Implementation
from benchmarks.environments import Unavailable, command, variables
from benchmarks.server.processes import CLIENT_CORES, SERVER_CORES, Nsqd, delayed, find_nsqd, on_cores

#: Text of the bodies.  It is like a log line, so that compression has a realistic cost.
_WORDS = (
    '{"ts":"2026-01-17T09:31:04.117Z","host":"web-14","user":48213,"path":"/cart/items?sku=A-7719","ms":12.4,'
    '"status":200,"ref":"https://shop.example/list?page=3&sort=price","agent":"Mozilla/5.0 (X11; Linux x86_64)"}\n'
)


class Failed(Exception):
    """A client crashed, hung, or did not do its work."""


@dataclasses.dataclass
class Settings:
    """Settings from the command line."""

    seconds: float = 0.8
    """Approximate seconds of the measured part, except for latency."""
    messages: int | None = None
    """Number of messages to measure.  None means that :attr:`seconds` determines it."""
    latency_seconds: float = 2.0
    """Seconds for which latency is measured."""
    linger: float = 0.25
    """Seconds that a client has to send its last answers."""
    patience: float = 60.0
    """Seconds to wait for a result, in addition to the expected duration."""
    pin: bool = True
    """Whether client and server have separate cores."""


def pace(implementation: Implementation, case: Case) -> float:
    """Return the approximate messages per second of a client in a case."""
    return min(implementation.pace * case.slow, case.rate)


def text_of(size: int) -> str:
    """Return a body of *size* characters."""
    return (_WORDS * (size // len(_WORDS) + 1))[:size]


class Bench:
    """Runs measurements, and keeps the nsqds that the measurements share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._nsqds: dict[str, Nsqd] = {}
        self._program = find_nsqd()
        self.server_name = f"nsqd {self._nsqd('small', 20_000).version()}" if self._program else "embedded broker"

    def close(self) -> None:
        """Stop the servers."""
        for nsqd in self._nsqds.values():
            nsqd.close()

    def _cores(self, case: Case, cores: Collection[int]) -> AbstractContextManager[None]:
        """Start processes on *cores* inside the block, or on any core to measure latency, which is lower then."""
        return on_cores(cores if self.settings.pin and case.kind != "latency" else None)

    def _nsqd(self, name: str, queue: int) -> Nsqd:
        have = self._nsqds.get(name)
        if have is not None and (have.queue < queue or not have.is_alive()):
            self._nsqds.pop(name).close()
        if name not in self._nsqds:
            with on_cores(SERVER_CORES if self.settings.pin else None):
                self._nsqds[name] = Nsqd(self._program, queue)
        return self._nsqds[name]

    def measure(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        """Return one result.  Raises Failed, and Unavailable if the client cannot run on this machine."""
        try:
            return self._measure(implementation, case)
        except (Failed, Unavailable):
            raise
        except Exception as error:  # for example because the server died; the run continues with the next client
            raise Failed(f"{implementation.name}: {type(error).__name__}: {error}") from error

    def _job(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        settings = self.settings
        job: dict[str, Any] = {
            "scenario": case.kind,
            "channel": "bench",
            "callers": 1,
            "batch": 1,
            "linger": settings.linger,
            "patience": settings.patience,
            "output_buffer_ms": 0,
            "max_in_flight": 1,
            **case.job,
            **implementation.job,
        }
        wanted = settings.messages or int(pace(implementation, case) * settings.seconds)
        if case.kind == "latency":
            seconds = settings.latency_seconds if settings.messages is None else 0.2
            wanted = int(job["per_second"] * seconds)
        job["text"] = text_of(job["body"])
        unit = job["callers"] * job["batch"]
        job["messages"] = max(1, wanted // unit) * unit
        job["warmup"] = 0 if case.kind == "latency" else max(1, job["messages"] // 10 // unit) * unit
        return job

    def _measure(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        job, argv = self._job(implementation, case), command(implementation)
        total = job["messages"] + job["warmup"]
        if case.kind == "publish":
            nsqd = self._nsqd("small", 20_000)
        else:
            nsqd = self._nsqd("large", max(1_000_000, total + 10_000))
        job["topic"] = nsqd.new_topic(keep=case.kind != "publish")
        try:
            if case.kind == "consume":
                nsqd.fill(job["topic"], total, job["text"].encode())
            with delayed(nsqd.address) if case.delayed else nullcontext(nsqd.address) as address:
                job["addresses"] = [address]
                driver = self._start(argv, case, job)
                if case.kind == "latency":
                    _publish_at_rate(nsqd, job, driver)
                result = _wait(driver, job, implementation, case)
            _check(nsqd.channel(job["topic"]), case, implementation, total, job)
        finally:
            nsqd.delete(job["topic"])
        return self._finish(case, result)

    def _start(self, argv: list[str], case: Case, job: dict[str, Any]) -> subprocess.Popen[str]:
        with self._cores(case, CLIENT_CORES):
            return subprocess.Popen(
                [*argv, json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables()
            )

    def _finish(self, case: Case, result: dict[str, Any]) -> dict[str, Any]:
        if case.kind == "latency":
            return result
        if result["messages"] <= 0 or result["cpu"] <= 0:
            raise Failed(f"too few messages to measure: {result}")
        return {
            **result,
            "value": result["messages"] / result["cpu"],
            "per_second": result["messages"] / result["wall"],
        }


def _wait(
    driver: subprocess.Popen[str], job: dict[str, Any], implementation: Implementation, case: Case
) -> dict[str, Any]:
    limit = job["patience"] + 20 * job["messages"] / pace(implementation, case)
    try:
        out, error = driver.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        driver.kill()
        _out, error = driver.communicate()
        raise Failed(f"{implementation.name}: no result in {limit:.0f} s\n{error[-2000:]}") from None
    if driver.returncode or not out.strip():
        raise Failed(f"{implementation.name}: exit code {driver.returncode}\n{error[-3000:]}")
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return result


def _check(stats: dict[str, Any], case: Case, implementation: Implementation, total: int, job: dict[str, Any]) -> None:
    """Raise Failed if nsqd's statistics lack messages.  gnsq_lite must leave no message unfinished."""
    if case.kind == "publish":
        if stats and stats["published"] < total:
            raise Failed(f"{implementation.name}: nsqd got {stats['published']} of {total}")
        return
    left = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
    allowed = 0 if implementation.ours or implementation.driver == "raw.py" else 2 * job["max_in_flight"]
    again = stats["requeue_count"] + stats["timeout_count"]
    if left > allowed or (implementation.ours and again):
        raise Failed(f"{implementation.name}: {left} messages not finished, {again} requeued or timed out")


def _publish_at_rate(nsqd: Nsqd, job: dict[str, Any], driver: subprocess.Popen[str]) -> None:
    """Publish messages with a time stamp at a steady rate, from a plain socket, after the client has subscribed."""
    deadline = time.monotonic() + 20
    while not nsqd.channel(job["topic"]).get("clients"):
        if time.monotonic() > deadline or driver.poll() is not None:
            driver.kill()
            raise Failed(f"no subscriber\n{driver.communicate()[1][-2000:]}")
        time.sleep(0.05)
    time.sleep(0.5)
    with nsqd.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"  V2")
        publish_stamped(sock, job)


def publish_stamped(sock: socket.socket, job: dict[str, Any]) -> None:
    """Publish at a steady rate without waiting for answers.  Late messages are published at once."""
    size, count, rate = job["body"], job["messages"], job["per_second"]
    head = b"PUB %s\n" % job["topic"].encode() + struct.pack(">I", size)
    answers = threading.Thread(target=_receive, args=(sock, 10 * count))
    answers.start()
    start, done = time.monotonic(), 0
    while done < count:
        time.sleep(max(0.0, start + done / rate - time.monotonic()))
        due = max(done + 1, min(count, 1 + int((time.monotonic() - start) * rate)))
        sock.sendall((head + (b"%020d" % time.monotonic_ns()).ljust(size, b"x")) * (due - done))
        done = due
    answers.join()


def _receive(sock: socket.socket, count: int) -> None:
    while count > 0:
        data = sock.recv(65536)
        if not data:
            raise Failed("nsqd refused a publish")
        count -= len(data)


def machine() -> dict[str, str]:
    """Return the CPU's model, the cores, the kernel and the load of this machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "kernel": os.uname().release,
        "load": f"{os.getloadavg()[0]:.1f}",
    }
