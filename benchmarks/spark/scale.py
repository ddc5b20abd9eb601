"""Measures the rate of one, two and four recorders, each limited to the same share of a core.

``GNSQ_NSQD=/path/to/nsqd python -m benchmarks.spark.scale`` needs a cgroup of version 1 that this user may write.
With ``--query``, it measures how many rows a Spark query is behind two recorders.

A round fills a topic, starts the recorders on the paused channel, limits each recorder, resumes the channel and counts
rows for some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.spark import cpu as cpu_by_kind
from benchmarks.spark.__main__ import sessions
from benchmarks.spark.cases import prepare
from gnsq_lite.recording import Recording
from tests import servers

CGROUPS = Path("/sys/fs/cgroup/cpu")
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def cgroup(name: str, share: float | None) -> Iterator[Path]:
    """Create a cgroup with a high CPU priority, and with *share* of a core.  None means no limit."""
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


@contextmanager
def recorders(count: int, share: float, rows: int, size: int) -> Iterator[tuple[Recording, list[int], int]]:
    """Run *count* limited recorders on a full topic, and yield the recording, the recorders' pids and nsqd's pid."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(servers.real_nsqd(folder, mem_queue_size=10_000_000))
        first = stack.enter_context(cgroup("nsqd", None))
        (first / "cgroup.procs").write_text(str(server.process.pid))
        prepare(server, "t", rows, size)
        server.http("POST", "/channel/pause?topic=t&channel=c")
        command = [sys.executable, "-m", "gnsq_lite", "record", "t", "c", str(folder / "recording")]
        command += ["--nsqd-tcp-address", server.tcp_address]
        started = []
        for number in range(count):
            recorder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(recorder.wait)
            stack.callback(recorder.kill)
            group = stack.enter_context(cgroup(str(number), share))
            started.append((recorder.pid, group))
        while len(server.stats("t", "c")["clients"]) < count:
            time.sleep(0.1)
        time.sleep(2.0)  # the imports are done
        for pid, group in started:
            (group / "cgroup.procs").write_text(str(pid))
        server.http("POST", "/channel/unpause?topic=t&channel=c")
        recording = Recording(str(folder / "recording"))
        while stored(recording) < rows // 20:
            time.sleep(0.01)
        yield recording, [pid for pid, _ in started], server.process.pid


def run(count: int, share: float, rows: int, seconds: float, size: int) -> tuple[float, float, float]:
    """Return rows per second of *count* recorders, and CPU us per row of a recorder and of nsqd."""
    with recorders(count, share, rows, size) as (recording, pids, nsqd):
        before, begun = stored(recording), time.perf_counter()
        used, served = sum(map(cpu, pids)), cpu(nsqd)
        time.sleep(seconds)
        after, passed = stored(recording), time.perf_counter() - begun
        used, served = sum(map(cpu, pids)) - used, cpu(nsqd) - served
        assert after < rows, "the topic was empty before the end: publish more rows"
        return (after - before) / passed, used / (after - before) * 1e6, served / (after - before) * 1e6


def stored(recording: Recording) -> int:
    """Return how many rows a recording has."""
    return sum(recording.end().values())


def follow(spark: Any, given: argparse.Namespace) -> None:
    """Print how far a query to Parquet is behind two recorders at the end of each batch, in rows and batches."""
    rows = given.rows * 2
    with recorders(2, given.share, rows, given.size) as (recording, _, _), tempfile.TemporaryDirectory() as folder:
        before = cpu_by_kind.seconds()
        frame = spark.readStream.format("nsq").options(recording=recording.url, startingOffsets="earliest").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.start(f"{folder}/rows")
        reports: dict[int, tuple[Any, int]] = {}
        deadline = time.monotonic() + given.seconds
        while time.monotonic() < deadline and query.isActive:
            report = query.lastProgress
            if report is not None and report["numInputRows"] and report["batchId"] not in reports:
                reports[report["batchId"]] = report, stored(recording) - position_of(report)
            time.sleep(0.01)
        assert query.isActive, query.exception()
        assert stored(recording) < rows, "the topic was empty before the end: publish more rows"
        spent, read = cpu_by_kind.since(before), sum(report["numInputRows"] for report, _ in reports.values())
        query.stop()
    batches = [report["numInputRows"] for report, _ in reports.values()]
    seconds = [report["durationMs"]["triggerExecution"] / 1000 for report, _ in reports.values()]
    behind = [rows for _, rows in reports.values()]
    following = [rows / batch for rows, batch in zip(behind, batches[1:], strict=False)]
    print(f"{len(batches)} batches, {read:,} rows; load {os.getloadavg()[0]:.1f}")
    for name, found in (("rows of a batch", batches), ("seconds of a batch", seconds), ("rows behind", behind)):
        print(f"{name}: median {statistics.median(found):,.2f}, last {found[-1]:,.2f}, most {max(found):,.2f}")
    print(f"rows behind / rows of the next batch: median {statistics.median(following):.2f}, most {max(following):.2f}")
    print("CPU us a row:", {kind: round(used / read * 1e6, 2) for kind, used in spent.items() if kind != "other"})


def position_of(report: Any) -> int:
    """Return how many rows a query has read, by its progress."""
    return sum(json.loads(report["sources"][0]["endOffset"]).values())


def main() -> None:
    """Print a line for each number of recorders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.1, help="share of a core for each recorder")
    parser.add_argument("--rows", type=int, default=400_000, help="rows published for each recorder")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--query", action="store_true", help="measure a query that reads the rows of two recorders")
    given = parser.parse_args()
    if given.query:
        spark = next(sessions())
        for _ in range(given.rounds):
            follow(spark, given)
        return
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
