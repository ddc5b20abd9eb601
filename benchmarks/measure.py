"""One measurement: a server, its load, one process of one client, and the check that the work was done."""

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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, Implementation
from benchmarks.environments import Unavailable, command, variables
from benchmarks.server.lookup import lookupd
from benchmarks.server.processes import CLIENT_CORES, SERVER_CORES, Nsqd, Pump, find_nsqd, on_cores
from benchmarks.server.youzan import Youzan

#: What the bodies are made of: text like a log line's, so that compression has ordinary work.
_WORDS = (
    '{"ts":"2026-01-17T09:31:04.117Z","host":"web-14","user":48213,"path":"/cart/items?sku=A-7719","ms":12.4,'
    '"status":200,"ref":"https://shop.example/list?page=3&sort=price","agent":"Mozilla/5.0 (X11; Linux x86_64)"}\n'
)


class Failed(Exception):
    """A client crashed, hung, or did not do its work."""


@dataclasses.dataclass
class Settings:
    """What the command line decides."""

    seconds: float = 0.8
    """Seconds that the measured part should take, about, where it counts messages."""
    messages: int | None = None
    """Messages measured, instead."""
    server: str = "auto"
    idle_seconds: float = 4.0
    latency_seconds: float = 2.0
    """Seconds for which latency is measured."""
    latency_messages: int | None = None
    """Messages whose latency is measured, instead."""
    settle: float = 1.5
    """Seconds an idle client gets to connect."""
    linger: float = 0.25
    """Seconds a client gets to send its last answers."""
    patience: float = 60.0
    """Seconds to wait for a result, beside those the work needs."""
    pin: bool = True
    """Whether client and server get cores of their own."""
    profile: Path | None = None


def pace(implementation: Implementation, case: Case) -> float:
    """Return the messages per second to expect, roughly."""
    return min(implementation.pace * case.slow, case.rate)


def text_of(size: int) -> str:
    """Return a body of *size* characters."""
    return (_WORDS * (size // len(_WORDS) + 1))[:size]


class Bench:
    """Runs measurements and keeps the servers they share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._nsqds: dict[str, Nsqd] = {}
        self._youzan: Youzan | None = None
        self._program = find_nsqd() if settings.server in ("auto", "nsqd") else None
        if settings.server == "nsqd" and self._program is None:
            raise Failed("no nsqd: set GNSQ_NSQD or put nsqd on PATH")

    def close(self) -> None:
        """Stop the servers."""
        for nsqd in self._nsqds.values():
            nsqd.close()
        if self._youzan is not None:
            self._youzan.close()

    def _cluster(self) -> Youzan:
        if self._youzan is None:
            self._youzan = Youzan(self.settings.pin)
        return self._youzan

    def server_name(self, case: Case) -> str:
        """Return which server *case* runs on here: none, pump, or nsqd with its version."""
        if case.server == "youzan":
            return f"Youzan's nsqd {self._cluster().version()}"
        if case.server != "any" or self._program is None:
            return case.server if case.server != "any" else "pump"
        return f"nsqd {self._nsqd('small', 20_000).version()}"

    def _cores(self, case: Case, cores: Collection[int]) -> AbstractContextManager[None]:
        """Start on *cores* while inside; latency is best where the system may move a process out of another's way."""
        return on_cores(cores if self.settings.pin and case.kind != "latency" else None)

    def _nsqd(self, name: str, queue: int) -> Nsqd:
        have = self._nsqds.get(name)
        if have is not None and (have.queue < queue or not have.is_alive()):
            self._nsqds.pop(name).close()
        if name not in self._nsqds:
            assert self._program is not None
            with on_cores(SERVER_CORES if self.settings.pin else None):
                self._nsqds[name] = Nsqd(self._program, queue)
        return self._nsqds[name]

    def expected(self, implementation: Implementation, case: Case) -> float:
        """Return about how many seconds a measurement takes on two cores that do nothing else."""
        job = self._job(implementation, case)
        if case.kind == "idle":
            return 1.0 + float(job["settle"] + job["seconds"])
        if case.kind == "latency":
            return 1.5 + float(job["messages"] / job["rate"] + job["linger"])
        total = job["messages"] + job["warmup"]
        fill = total / 400_000 if case.kind == "consume" else 0.0
        return 0.7 + fill + total / pace(implementation, case) + float(job["linger"])

    def measure(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        """Return one result, with the seconds it took.  Raises Failed, and Unavailable where it cannot be run."""
        begun = time.monotonic()
        try:
            result = self._measure(implementation, case)
        except (Failed, Unavailable):
            raise
        except Exception as error:  # of a server that died, say: the run goes on with the next
            raise Failed(f"{implementation.name}: {type(error).__name__}: {error}") from error
        return {**result, "took": time.monotonic() - begun}

    def _measure(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        job = self._job(implementation, case)
        argv = command(implementation)
        if case.server == "none":
            return self._finish(case, job, _wait(self._start(argv, case, job), job, implementation, case))
        if case.server == "youzan":
            return self._on_youzan(argv, implementation, case, job)
        if case.server == "pump" or self._program is None:
            return self._on_pump(argv, implementation, case, job)
        return self._on_nsqd(argv, implementation, case, job)

    def _job(self, implementation: Implementation, case: Case) -> dict[str, Any]:
        job: dict[str, Any] = {
            "scenario": case.kind,
            "topic": "bench",
            "channel": "bench",
            "callers": 1,
            "batch": 1,
            "linger": self.settings.linger,
            "settle": self.settings.settle,
            "patience": self.settings.patience,
            "seconds": self.settings.idle_seconds,
            "output_buffer_ms": 0,
            "max_in_flight": 1,
            **case.job,
            **implementation.job,
        }
        wanted = self.settings.messages or int(pace(implementation, case) * self.settings.seconds)
        if case.kind == "latency":
            few = self.settings.latency_messages
            wanted = int(job["rate"] * self.settings.latency_seconds) if few is None else min(few, wanted)
        job["text"] = text_of(job.get("body", 100))
        unit = job["callers"] * job["batch"] * job.get("burst", 1)
        job["messages"] = max(1, wanted // unit) * unit
        job["warmup"] = 0 if case.kind == "latency" else max(1, job["messages"] // 10 // unit) * unit
        return job

    # -- with a real nsqd -----------------------------------------------------------------------------------------

    def _on_nsqd(
        self, argv: list[str], implementation: Implementation, case: Case, job: dict[str, Any]
    ) -> dict[str, Any]:
        total = job["messages"] + job["warmup"]
        if case.kind == "publish":
            nsqd = self._nsqd("small", 20_000)
        else:
            nsqd = self._nsqd("large", max(1_000_000, total + 10_000))
        job["topic"] = nsqd.new_topic(keep=case.kind != "publish")
        job["addresses"] = [nsqd.address]
        try:
            if case.kind == "consume":
                nsqd.fill(job["topic"], total, job["text"].encode())
            used, begun = nsqd.cpu(), time.monotonic()
            driver = self._start(argv, case, job)
            if case.kind == "latency":
                _publish_at_rate(nsqd, job, driver)
            result = _wait(driver, job, implementation, case)
            result.update(server_cpu=nsqd.cpu() - used, server_wall=time.monotonic() - begun)
            _check_nsqd(nsqd.channel(job["topic"]), case, implementation, total, job)
        finally:
            nsqd.delete(job["topic"])
        return self._finish(case, job, result)

    # -- with Youzan's servers ------------------------------------------------------------------------------------

    def _on_youzan(
        self, argv: list[str], implementation: Implementation, case: Case, job: dict[str, Any]
    ) -> dict[str, Any]:
        total, cluster = job["messages"] + job["warmup"], self._cluster()
        job["lookupds"], job["topic"] = cluster.lookupds, cluster.new_topic(ordered=job.get("ordered", False))
        try:
            if case.kind == "consume":
                cluster.fill(job["topic"], total, job["text"].encode())
            result = _wait(self._start(argv, case, job), job, implementation, case)
            done = cluster.published(job["topic"]) - (cluster.unfinished(job["topic"]) if case.kind == "consume" else 0)
            if done < total - (0 if implementation.ours else 2 * job["max_in_flight"]):
                raise Failed(f"{implementation.name}: {done} of {total} messages")
        finally:
            cluster.delete(job["topic"])
        return self._finish(case, job, result)

    # -- with the pump --------------------------------------------------------------------------------------------

    def _on_pump(
        self, argv: list[str], implementation: Implementation, case: Case, job: dict[str, Any]
    ) -> dict[str, Any]:
        consumes = case.kind in ("consume", "latency")
        listeners = job.get("connections", 1)
        total = job["messages"] + job["warmup"]
        with self._cores(case, SERVER_CORES):
            pump = Pump(
                messages=total if consumes else 0,
                body=job["body"],
                text=job["text"],
                codec=job["codec"],
                max_in_flight=job["max_in_flight"],
                listeners=listeners,
                beat_every_messages=max(100, total // 20) if job.get("audit") else 0,
                rate=job.get("rate", 0),
            )
        with pump, lookupd(job, pump.addresses[0]):
            job["addresses"] = pump.addresses
            result = _wait(self._start(argv, case, job), job, implementation, case)
            account = pump.stop()
        _check_pump(account, case, implementation, total, job)
        if job.get("audit"):
            result["account"] = account
        return self._finish(case, job, result)

    def _start(self, argv: list[str], case: Case, job: dict[str, Any]) -> subprocess.Popen[str]:
        environment = variables()
        if self.settings.profile is not None:
            environment["GNSQ_BENCH_PROFILE"] = str(self.settings.profile)
        with self._cores(case, CLIENT_CORES):
            return subprocess.Popen(
                [*argv, json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )

    def _finish(self, case: Case, job: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        if case.kind == "latency":
            value = result["p50"]
        elif case.kind == "idle":
            value = result["cpu"] / result["wall"] * 60
        else:
            if result["messages"] <= 0 or result["cpu"] <= 0:
                raise Failed(f"too few messages to measure: {result}")
            value = result["messages"] / result["cpu"]
            result["per_second"] = result["messages"] / result["wall"]
        return {**result, "value": value}


def _wait(
    driver: subprocess.Popen[str], job: dict[str, Any], implementation: Implementation, case: Case
) -> dict[str, Any]:
    limit = job["patience"] + job["settle"] + job["seconds"] + 20 * job["messages"] / pace(implementation, case)
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


def _check_nsqd(
    stats: dict[str, Any], case: Case, implementation: Implementation, total: int, job: dict[str, Any]
) -> None:
    """Raise Failed where nsqd has not seen the work done; ours must have left nothing behind at all."""
    if case.kind == "publish":
        if stats and stats["published"] < total:
            raise Failed(f"{implementation.name}: nsqd got {stats['published']} of {total}")
        return
    left = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
    allowed = 0 if implementation.ours or implementation.driver == "raw.py" else 2 * job["max_in_flight"]
    again = stats["requeue_count"] + stats["timeout_count"]
    if left > allowed or (implementation.ours and again):
        raise Failed(f"{implementation.name}: {left} messages not finished, {again} requeued or timed out")


def _check_pump(
    account: dict[str, Any], case: Case, implementation: Implementation, total: int, job: dict[str, Any]
) -> None:
    """Raise Failed where the pump's account does not add up; ours must have kept every rule."""
    problems = list(account["violations"]) if implementation.ours else []
    if case.kind == "publish" and account["published"] < total:
        problems.append(f"the pump got {account['published']} of {total}")
    if case.kind in ("consume", "latency"):
        unanswered = account["sent"] - account["distinct"]
        if account["sent"] < total:
            problems.append(f"the pump sent {account['sent']} of {total}")
        if unanswered > (0 if implementation.ours else 2 * job["max_in_flight"]):
            problems.append(f"{unanswered} messages without an answer")
        if implementation.ours and account["requeued"]:
            problems.append(f"{account['requeued']} messages requeued")
    if implementation.ours and account["subscribers"] < job.get("connections", 1) and case.kind != "publish":
        problems.append(f"{account['subscribers']} of {job.get('connections', 1)} connections")
    if job.get("audit") and not account["heartbeats"]:
        problems.append("no heartbeat was due: nothing is shown")
    if problems:
        raise Failed(f"{implementation.name}: " + "; ".join(problems))


def _publish_at_rate(nsqd: Nsqd, job: dict[str, Any], driver: subprocess.Popen[str]) -> None:
    """Publish stamped messages evenly, from a plain socket, once the client has subscribed."""
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
    """Publish *burst* messages at a time, evenly; what is late goes at once, and no answer is waited for."""
    burst, size, topic = job["burst"], job["body"], job["topic"].encode()
    publishes = job["messages"] // burst
    answers = threading.Thread(target=_receive, args=(sock, 10 * publishes))
    answers.start()
    start, done = time.monotonic(), 0
    while done < publishes:
        pause = start + done * burst / job["rate"] - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        due = min(publishes, 1 + int((time.monotonic() - start) * job["rate"] / burst))
        body = struct.pack(">I", size) + (b"%020d" % time.monotonic_ns()).ljust(size, b"x")
        if burst == 1:
            command = b"PUB %s\n%b" % (topic, body)
        else:
            command = b"MPUB %s\n%b" % (topic, struct.pack(">II", 4 + burst * len(body), burst) + body * burst)
        sock.sendall(command * max(1, due - done))
        done = max(due, done + 1)
    answers.join()


def _receive(sock: socket.socket, count: int) -> None:
    while count > 0:
        data = sock.recv(65536)
        if not data:
            raise Failed("nsqd refused a publish")
        count -= len(data)


def machine() -> dict[str, str]:
    """Describe the machine, as far as it can be told."""
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
