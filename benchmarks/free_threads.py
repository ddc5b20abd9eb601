"""Compares handler threads of one process with processes, for handlers that compute in pure Python.

::

    python -m benchmarks free_threads [--seconds 2] [--rounds 3]
    PYTHON_GIL=0 python3.14t -m benchmarks free_threads

A handler of 0, 50, 200 or 1,000 us runs a loop of pure Python, whose length is measured first in one thread.  The
messages are in nsqd before a run begins.  *threads* is one Reader with a handler thread for each core, *processes* is
as many processes with one handler thread each.  The figures are messages per second of wall time and the memory of all
processes.  Run it with and without the GIL, and compare the two columns of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
LENGTHS = (0, 50, 200, 1000)
BODY = b"x" * 100


def burn(turns: int) -> int:
    """Compute for *turns* turns of a loop."""
    value = 0
    for each in range(turns):
        value ^= each
    return value


def turns_for(microseconds: int) -> int:
    """Return how many turns of :func:`burn` take *microseconds* in one thread."""
    begins = time.perf_counter()
    burn(1_000_000)
    return int(microseconds * 1e-6 * 1_000_000 / (time.perf_counter() - begins))


def consume(job: dict[str, Any]) -> dict[str, float]:
    """Handle *count* messages; return the time of the first and of the last call, and the memory in MiB."""
    from gnsq_lite import Message, Reader
    from gnsq_lite.net.os_threads import Count

    handled, turns, count, times = Count(), job["turns"], job["count"], []

    def handle(message: Message) -> None:
        burn(turns)
        handled.add()
        if not times:
            times.append(time.time())

    reader = Reader(
        job["topic"],
        "bench",
        handle,
        nsqd_tcp_addresses=job["address"],
        handler_pool="thread",
        concurrency=job["threads"],
        max_in_flight=200,
        handle_signals=False,
    )
    reader.start(block=False)
    seen, changed = 0, time.time()
    while seen < count and time.time() - changed < 2.0:  # processes share the channel: each gets a part
        time.sleep(0.01)
        if handled.value() != seen:
            seen, changed = handled.value(), time.time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": times[0] if times else changed, "last": changed, "handled": float(seen), "memory": memory}


def run(nsqd: Any, turns: int, count: int, processes: int, threads: int) -> tuple[float, float]:
    """Return (messages per second, MiB) of *processes* with *threads* handler threads each."""
    topic = nsqd.new_topic(keep=True)
    nsqd.fill(topic, count, BODY)
    job = {"topic": topic, "address": nsqd.address, "turns": turns, "threads": threads, "count": count}
    command = [sys.executable, "-m", "benchmarks.free_threads", "--child", json.dumps(job)]
    children = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(processes)]
    said = [json.loads(child.communicate(timeout=150)[0]) for child in children]
    nsqd.delete(topic)
    seconds = max(each["last"] for each in said) - min(each["first"] for each in said)
    return sum(each["handled"] for each in said) / seconds, sum(each["memory"] for each in said)


def compare(seconds: float, rounds: int) -> None:
    """Print a line for each length of handler."""
    from benchmarks.server.processes import Nsqd, find_nsqd

    program, cores = find_nsqd(), len(os.sched_getaffinity(0))
    if program is None:
        raise SystemExit("no nsqd: put one on PATH, or name it in GNSQ_NSQD")
    gil = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
    build = "free-threaded build" if sysconfig.get_config_var("Py_GIL_DISABLED") else "build with the GIL"
    version = sys.version.split()[0]
    print(f"Python {version}, {build}, GIL {'on' if gil else 'off'}, {cores} cores, {rounds} rounds, messages/s")
    print(f"{'handler':>8} {'1 thread':>10} {'threads':>10} {'MiB':>6} {'processes':>10} {'MiB':>6}")
    nsqd = Nsqd(program, 1_000_000)
    for length in LENGTHS:
        turns, count = turns_for(length), int(min(60_000, seconds * 1e6 / max(length, 25)))
        shapes = [(1, 1), (1, cores), (cores, 1)]
        seen = [[run(nsqd, turns, count, *shape) for shape in shapes] for _ in range(rounds)]
        one, threads, processes = (
            (median(each[at][0] for each in seen), median(each[at][1] for each in seen)) for at in range(3)
        )
        print(
            f"{length:>5} us {one[0]:>10,.0f} {threads[0]:>10,.0f} {threads[1]:>6.0f}"
            f" {processes[0]:>10,.0f} {processes[1]:>6.0f}",
            flush=True,
        )
    nsqd.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(consume(json.loads(sys.argv[2]))), flush=True)
        os._exit(0)  # closing is not measured
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="approximate duration of a run with one thread")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    compare(arguments.seconds, arguments.rounds)
