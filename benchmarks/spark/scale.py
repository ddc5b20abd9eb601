"""Measure the rate of one, two and four recorders, each limited to the same share of a core.

``GNSQ_NSQD=/path/to/nsqd python -m benchmarks.spark.scale``; needs a cgroup of version 1 that this user may write.

A round fills a topic, starts the recorders on the paused channel, limits each, resumes the channel and counts rows for
some seconds.  The rounds take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.spark.cases import prepare
from gnsq_lite.recording import Recording
from tests import servers

CGROUPS = Path("/sys/fs/cgroup/cpu")
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def cgroup(name: str, share: float | None) -> Iterator[Path]:
    """Make a cgroup whose processes have *share* of a core, and are first in turn; None: without a limit."""
    folder = CGROUPS / f"gnsq-scale-{os.getpid()}-{name}"
    folder.mkdir()
    try:
        (folder / "cpu.shares").write_text("200000")
        if share is not None:
            (folder / "cpu.cfs_period_us").write_text("20000")
            (folder / "cpu.cfs_quota_us").write_text(str(int(share * 20_000)))
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (CGROUPS / "cgroup.procs").write_text(pid)
        folder.rmdir()


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def run(count: int, share: float, rows: int, seconds: float, size: int) -> tuple[float, float, float]:
    """Return (rows a second of *count* recorders, CPU us of a recorder for a row, CPU us of nsqd)."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(servers.real_nsqd(folder, mem_queue_size=10_000_000))
        first = stack.enter_context(cgroup("nsqd", None))
        (first / "cgroup.procs").write_text(str(server.process.pid))
        prepare(server, "t", rows, size)
        server.http("POST", "/channel/pause?topic=t&channel=c")
        command = [sys.executable, "-m", "gnsq_lite", "record", "t", "c", str(folder / "recording")]
        command += ["--nsqd-tcp-address", server.tcp_address]
        recorders = []
        for number in range(count):
            recorder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(recorder.wait)
            stack.callback(recorder.kill)
            group = stack.enter_context(cgroup(str(number), share))
            recorders.append((recorder.pid, group))
        while len(server.stats("t", "c")["clients"]) < count:
            time.sleep(0.1)
        time.sleep(2.0)  # the imports are done
        for pid, group in recorders:
            (group / "cgroup.procs").write_text(str(pid))
        server.http("POST", "/channel/unpause?topic=t&channel=c")
        recording = Recording(str(folder / "recording"))
        while sum(recording.end().values()) < rows // 20:
            time.sleep(0.01)
        pids = [pid for pid, _ in recorders]
        before, begun = sum(recording.end().values()), time.perf_counter()
        used, served = sum(map(cpu, pids)), cpu(server.process.pid)
        time.sleep(seconds)
        after, passed = sum(recording.end().values()), time.perf_counter() - begun
        used, served = sum(map(cpu, pids)) - used, cpu(server.process.pid) - served
        assert after < rows, "the topic was empty before the time was over: publish more"
        stored = after - before
        return stored / passed, used / stored * 1e6, served / stored * 1e6


def main() -> None:
    """Print a line for each number of recorders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.1, help="share of a core that each recorder has")
    parser.add_argument("--rows", type=int, default=400_000, help="rows published for each recorder")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[int, list[tuple[float, float, float]]] = {1: [], 2: [], 4: []}
    for _ in range(given.rounds):
        for count, rounds in found.items():
            rounds.append(run(count, given.share, given.rows * count, given.seconds, given.size))
            print(count, *(f"{number:.1f}" for number in rounds[-1]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    single = statistics.median(rate for rate, *_ in found[1])
    for count, rounds in found.items():
        rate, used, served = (statistics.median(column) for column in zip(*rounds, strict=True))
        times = f"{rate:,.0f} rows a second, {rate / single:.2f} times one"
        print(f"{count} recorders: {times}; CPU us a row: recorder {used:.2f}, nsqd {served:.2f}")


if __name__ == "__main__":
    main()
