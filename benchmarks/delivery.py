"""``delivery="auto"`` beside ``"bulk"``, on a real nsqd: ``python -m benchmarks.delivery rates`` and the other parts.

Every pair is measured one right after the other, each first in turn: what counts is the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import IMPLEMENTATIONS, Case, Implementation
from benchmarks.environments import OUT, Unavailable, versions
from benchmarks.measure import Bench, Failed, Settings, machine

OURS = {client.name.removeprefix("gnsq_lite-"): client for client in IMPLEMENTATIONS if client.ours}
_BASE = {"max_in_flight": 200, "body": 100, "codec": "plain"}


@dataclass(frozen=True)
class Trial:
    """One row: a case, and the ways to set up a Reader that are compared in it."""

    case: Case
    seconds: float
    """What it is measured for, about."""
    ways: tuple[Implementation, ...]


def _ways(pool: str = "greenlet", **job: Any) -> tuple[Implementation, ...]:
    """Return the two deliveries with *pool*."""
    ours = OURS[pool]
    return tuple(replace(ours, name=name, job={**ours.job, "delivery": name, **job}) for name in ("auto", "bulk"))


def _steady(rate: float, handle: float = 0.0, burst: int = 1) -> Case:
    title = f"{burst} at once" if burst > 1 else f"{rate:g} messages/s"
    title += f", handlers of {1000 * handle:g} ms" if handle else ""
    return Case("delivery", "latency", title, {**_BASE, "rate": rate, "burst": burst, "handle": handle})


def _backlog(title: str, **job: Any) -> Case:
    """A backlog for handlers that take *handle* seconds, or none."""
    handle, workers = job.get("handle", 0.0), job.get("concurrency", 100)
    rate = int(workers / handle) if handle else 400_000
    return Case("delivery", "consume", title, {**_BASE, **job}, rate=rate)


def rates() -> Iterator[Trial]:
    """Steady rates, handlers that return at once, and at the low ones handlers that take 20 ms."""
    for rate in (10, 50, 500, 2_000, 5_000, 10_000, 20_000):
        yield Trial(_steady(rate), 6.0 if rate < 500 else 2.5, _ways())
    for rate in (10, 50, 500):
        yield Trial(_steady(rate, handle=0.02), 6.0 if rate < 500 else 2.5, _ways())


def bursts() -> Iterator[Trial]:
    """One MPUB 3.7 times a second: no multiple of what nsqd's ticker takes, or all would meet it alike."""
    for size in (1, 10, 100, 1_000, 10_000):
        yield Trial(_steady(3.7 * size, burst=size), 4.0, _ways())


def saturation() -> Iterator[Trial]:
    """A backlog, handlers that return at once."""
    for pool in ("greenlet", "thread"):
        yield Trial(_backlog(f"saturation, {pool} pool"), 1.6, _ways(pool))


def handlers() -> Iterator[Trial]:
    """A backlog, handlers that sleep."""
    for handle in (0.001, 0.02, 0.2):
        for workers in (1, 10, 100):
            title = f"handlers of {1000 * handle:g} ms, concurrency {workers}"
            seconds = max(2.0, 20 * handle)
            yield Trial(_backlog(title, handle=handle, concurrency=workers), seconds, _ways())


def flushing() -> Iterator[Trial]:
    """Output buffer timeouts, in milliseconds: what they cost nsqd."""
    ways = tuple(replace(_ways(output_buffer_ms=ms)[0], name=f"{ms} ms") for ms in (25, 250, -1))
    for rate in (10, 50, 500, 5_000, 20_000):
        yield Trial(_steady(rate), 8.0 if rate < 500 else 3.0, ways)
    yield Trial(_backlog("saturation"), 1.6, ways)
    for connections in (1, 200):
        job = {**_BASE, "connections": connections, "max_in_flight": 200}
        yield Trial(Case("delivery", "idle", f"{connections} idle connections", job), 4.0, ways)


PARTS: dict[str, Callable[[], Iterator[Trial]]] = {
    part.__name__: part for part in (rates, bursts, saturation, handlers, flushing)
}


def figures(case: Case, result: dict[str, Any]) -> dict[str, float]:
    """Return what is compared of one measurement: times in milliseconds, CPU in microseconds a message."""
    count = result.get("messages", 1)
    found = {"nsqd's CPU": 1e6 * result["server_cpu"] / count}
    if case.kind == "idle":
        return {"nsqd's CPU": 1000 * result["server_cpu"] / result["server_wall"]}  # ms a second
    if case.kind == "consume":
        found |= {"messages/s": result["per_second"], "CPU": 1e6 * result["cpu"] / count}
    else:
        found |= {name: 1000 * result[name] for name in ("p50", "p99", "last") if name in result}
    return found | {"RDY": result["readies"] / count}


def compare(bench: Bench, trial: Trial, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return every figure of every round, by way and name."""
    bench.settings.seconds = bench.settings.latency_seconds = bench.settings.idle_seconds = trial.seconds
    found: dict[str, dict[str, list[float]]] = {way.name: {} for way in trial.ways}
    for number in range(rounds):
        for way in trial.ways if number % 2 else reversed(trial.ways):
            for name, value in figures(trial.case, bench.measure(way, trial.case)).items():
                found[way.name].setdefault(name, []).append(value)
    return found


def text(title: str, found: dict[str, dict[str, list[float]]]) -> str:
    """Return one line: medians of all ways by figure, and the median ratio of the first two within their rounds."""
    parts = [f"{title:34}"]
    first, second = list(found)[:2]
    for name, values in found[first].items():
        medians = " ".join(f"{statistics.median(rows[name]):.4g}" for rows in found.values())
        both = [a / b for a, b in zip(values, found[second][name], strict=True) if b]
        ratio = f" = {statistics.median(both):.2f} [{min(both):.2f}..{max(both):.2f}]" if both else ""
        parts.append(f"{name} {medians}{ratio}")
    return " | ".join(parts)


def parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.delivery", description=__doc__)
    made.add_argument("parts", nargs="+", choices=tuple(PARTS))
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--case", default="", help="only cases with this in their title")
    made.add_argument("--out", type=Path, default=OUT / "delivery.json")
    return made


def main(argv: list[str] | None = None) -> int:
    """Measure the parts that are named; return 1 where one failed."""
    args = parser().parse_args(argv)
    trials = [trial for part in args.parts for trial in PARTS[part]() if args.case in trial.case.title]
    bench, all_found, failed = Bench(Settings(server="nsqd", linger=0.1)), {}, False
    try:
        for trial in trials:
            try:
                all_found[trial.case.title] = found = compare(bench, trial, args.rounds)
            except (Failed, Unavailable) as error:
                failed = True
                print(f"{trial.case.title}: {error}", file=sys.stderr)
            else:
                print(text(trial.case.title, found), flush=True)
    finally:
        bench.close()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine(), "versions": versions(), "found": all_found}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
