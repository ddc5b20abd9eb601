"""Compares this checkout with another one in interleaved pairs on the same nsqd.

::

    python -m benchmarks.versions OTHER_CHECKOUT [--pairs 11] [CASE ...]

Both checkouts must have their C extension built in place.  Each measurement runs in a new process.  Each pair runs the
other checkout and this one, in alternating order.  The table shows the median of the pairs' ratios (this / other) and
the median of each checkout.  CASE selects the cases whose names begin with this text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
BODY = b"x" * 100
#: name -> (figure, direction, job).  Units: cpu in us per message, rate in messages per second, p50 etc. in ms.
CASES: dict[str, dict[str, Any]] = {
    **{f"publish, {n} threads": {"do": "publish_threads", "n": n, "count": 24_000} for n in (1, 4, 10, 50, 100)},
    **{
        f"publish, {n} threads, 2 ms round trip": {"do": "publish_threads", "n": n, "count": 60 * n, "slow": True}
        for n in (20, 100)
    },
    "publish, 1 greenlet": {"do": "publish_greenlets", "n": 1, "count": 20_000, "patched": True},
    "publish, 100 greenlets": {"do": "publish_greenlets", "n": 100, "count": 60_000, "patched": True},
    "publish, 100 greenlets, coalesced": {
        **{"do": "publish_greenlets", "n": 100, "count": 200_000, "patched": True},
        "coalesce": True,
    },
    "MPUB of 100": {"do": "mpub", "count": 400_000, "patched": True},
    **{
        f"consume, {pool}, {n} in flight": {"do": "consume", "pool": pool, "n": n, "count": count, "patched": patched}
        for pool, patched in (("greenlet", True), ("inline", True), ("thread", False))
        for n, count in ((1, 20_000), (200, 200_000), (2500, 200_000))
    },
    **{
        f"latency, {pool}, {rate}/s": {"do": "latency", "pool": pool, "rate": rate, "seconds": 2.0, "patched": patched}
        for pool, patched in (("greenlet", True), ("thread", False))
        for rate in (50, 500, 5_000, 20_000)
    },
    "import": {"do": "import"},
    "import and first publish": {"do": "first_publish"},
}


def cpu() -> float:
    """Return the CPU seconds of this process, user and system."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# Code of the measured processes.  It uses only names that both checkouts have.


def publish_threads(job: dict[str, Any]) -> dict[str, float]:
    """Publish from n native threads, and return CPU, rate and high percentiles of the latency."""
    from gnsq_lite import Writer

    each, n = job["count"] // job["n"], job["n"]
    writer = Writer(job["address"])
    writer.publish(job["topic"], BODY)
    start, done, took = threading.Barrier(n + 1), threading.Barrier(n + 1), []

    def run() -> None:
        mine, publish, topic, clock = [], writer.publish, job["topic"], time.perf_counter
        for _ in range(20):
            publish(topic, BODY)
        start.wait()
        for _ in range(each):
            began = clock()
            publish(topic, BODY)
            mine.append(clock() - began)
        took.extend(mine)
        done.wait()

    for _ in range(n):
        threading.Thread(target=run, daemon=True).start()
    start.wait()
    used, began = cpu(), time.perf_counter()
    done.wait()
    return {**_figures(used, began, each * n), **_tail(took)}


def _figures(used: float, began: float, count: int) -> dict[str, float]:
    return {"cpu": (cpu() - used) / count * 1e6, "rate": count / (time.perf_counter() - began)}


def _tail(took: list[float]) -> dict[str, float]:
    took.sort()
    return {name: took[int(share * (len(took) - 1))] * 1e3 for name, share in (("p99", 0.99), ("p99.9", 0.999))}


def publish_greenlets(job: dict[str, Any]) -> dict[str, float]:
    """Publish from n greenlets of a patched process."""
    import gevent

    from gnsq_lite import Writer

    writer = Writer(job["address"], coalesce=job.get("coalesce", False))
    each = job["count"] // job["n"]

    def run(count: int) -> None:
        publish, topic = writer.publish, job["topic"]
        for _ in range(count):
            publish(topic, BODY)

    gevent.joinall([gevent.spawn(run, 50) for _ in range(job["n"])], raise_error=True)
    used, began = cpu(), time.perf_counter()
    gevent.joinall([gevent.spawn(run, each) for _ in range(job["n"])], raise_error=True)
    return _figures(used, began, each * job["n"])


def mpub(job: dict[str, Any]) -> dict[str, float]:
    """Publish batches of 100 messages, one batch after the other."""
    from gnsq_lite import Writer

    writer, bodies = Writer(job["address"]), [BODY] * 100
    for _ in range(20):
        writer.multipublish(job["topic"], bodies)
    used, began = cpu(), time.perf_counter()
    for _ in range(job["count"] // 100):
        writer.multipublish(job["topic"], bodies)
    return _figures(used, began, job["count"])


def consume(job: dict[str, Any]) -> dict[str, float]:
    """Consume the channel's messages with a handler that only counts."""
    import itertools

    from gnsq_lite import Reader

    tick, warm, last = itertools.count(1).__next__, job["count"] // 10, job["count"]
    at: list[tuple[float, float]] = []
    done = threading.Event()

    def handle(message: Any) -> None:
        number = tick()
        if number == warm:
            at.append((cpu(), time.perf_counter()))
        elif number == last:
            at.append((cpu(), time.perf_counter()))
            done.set()

    reader = Reader(
        job["topic"],
        "bench",
        handle,
        nsqd_tcp_addresses=job["address"],
        max_in_flight=job["n"],
        handler_pool=job["pool"],
        concurrency=1 if job["pool"] == "inline" else min(job["n"], 8),
    )
    reader.start(block=False)
    if not done.wait(100):
        raise TimeoutError
    (used, began), (used_then, ended) = at
    return {"cpu": (used_then - used) / (last - warm) * 1e6, "rate": (last - warm) / (ended - began)}


def latency(job: dict[str, Any]) -> dict[str, float]:
    """Return the time from a publish in another process to the handler."""
    from gnsq_lite import Reader

    took: list[float] = []

    def handle(message: Any) -> None:
        took.append((time.monotonic_ns() - int(message.body[:20])) / 1e9)

    reader = Reader(
        job["topic"],
        "bench",
        handle,
        nsqd_tcp_addresses=job["address"],
        max_in_flight=200,
        concurrency=8,
        handler_pool=job["pool"],
    )
    reader.start(block=False)
    time.sleep(0.5)
    subprocess.run([sys.executable, __file__, "--steady", json.dumps(job)], check=True)
    time.sleep(0.3)
    took.sort()
    return {"p50": took[len(took) // 2] * 1e3, **_tail(took)}


def steady(job: dict[str, Any]) -> None:
    """Publish at a steady rate on a bare socket, without waiting for answers."""
    import socket
    import struct

    host, _, port = job["address"].rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.sendall(b"  V2")
    threading.Thread(target=lambda: [None for _ in iter(lambda: sock.recv(65536), b"")], daemon=True).start()
    head = b"PUB %s\n" % job["topic"].encode() + struct.pack(">I", 100)
    began, count = time.monotonic(), int(job["rate"] * job["seconds"])
    for number in range(count):
        wait = began + number / job["rate"] - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        sock.sendall(head + (b"%020d" % time.monotonic_ns()).ljust(100, b"x"))
    time.sleep(0.1)


def import_(job: dict[str, Any]) -> dict[str, float]:
    """Return the duration of the package's import."""
    began = time.perf_counter()
    import gnsq_lite

    return {"ms": (time.perf_counter() - began) * 1e3, "names": float(len(dir(gnsq_lite)))}


def first_publish(job: dict[str, Any]) -> dict[str, float]:
    """Return the duration of the package's import and the first publish together."""
    began = time.perf_counter()
    from gnsq_lite import Writer

    Writer(job["address"]).publish(job["topic"], BODY)
    return {"ms": (time.perf_counter() - began) * 1e3}


DO: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "publish_threads": publish_threads,
    "publish_greenlets": publish_greenlets,
    "mpub": mpub,
    "consume": consume,
    "latency": latency,
    "import": import_,
    "first_publish": first_publish,
}


# Code of the comparison.


def measure(tree: Path, job: dict[str, Any]) -> dict[str, float]:
    """Run *job* in a process that imports the package from *tree*."""
    ran = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(job)],
        env={**os.environ, "PYTHONPATH": str(tree), "GNSQ_LITE_IMPL": "c"},
        cwd=tree,
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    if ran.returncode:
        raise RuntimeError(f"{tree}: {job}\n{ran.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def child(job: dict[str, Any]) -> None:
    """Run *job*, print its figures, and exit without closing, because closing is not measured."""
    if job.get("patched"):
        from gevent import monkey

        monkey.patch_all()
    print(json.dumps(DO[job["do"]](job)), flush=True)
    os._exit(0)


def compare(other: Path, pairs: int, wanted: list[str]) -> None:
    """Print a line with the ratio and both medians for each case and figure."""
    from benchmarks.server.processes import Nsqd, delayed, find_nsqd

    program = find_nsqd()
    if program is None:
        raise SystemExit("no nsqd: put one on PATH, or name it in GNSQ_NSQD")
    nsqd = Nsqd(program, 1_000_000)
    print(f"{'case':42} {'figure':7} {'ratio':>6} {'this':>10} {'other':>10}   nsqd {nsqd.version()}, {pairs} pairs")
    with delayed(nsqd.address) as slow:
        for name, job in CASES.items():
            if wanted and not any(name.startswith(each) for each in wanted):
                continue
            seen: dict[Path, list[dict[str, float]]] = {ROOT: [], other: []}
            for pair in range(pairs):
                for tree in (other, ROOT) if pair % 2 else (ROOT, other):
                    keep = job["do"] in ("consume", "latency")
                    topic = nsqd.new_topic(keep=keep)
                    if job["do"] == "consume":
                        nsqd.fill(topic, job["count"], BODY)
                    address = slow if job.get("slow") else nsqd.address
                    seen[tree].append(measure(tree, {**job, "topic": topic, "address": address}))
                    nsqd.delete(topic)
            for figure in seen[ROOT][0]:
                here, there = ([each[figure] for each in seen[tree]] for tree in (ROOT, other))
                ratio = median(a / b for a, b in zip(here, there, strict=True))
                print(f"{name:42} {figure:7} {ratio:6.2f} {median(here):10.2f} {median(there):10.2f}", flush=True)
    nsqd.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["--steady"]:
        steady(json.loads(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        parser.add_argument("other", type=Path)
        parser.add_argument("cases", nargs="*", metavar="CASE")
        parser.add_argument("--pairs", type=int, default=11)
        arguments = parser.parse_intermixed_args()
        compare(arguments.other.resolve(), arguments.pairs, arguments.cases)
