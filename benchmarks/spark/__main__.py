"""Measures ``format("nsq")`` with a real nsqd: ``python -m benchmarks.spark [--quick] [--only NAME ...]``.

Each round runs every case, and each case checks its result.  The first round warms up, and its figures are discarded.
Prints the median, the minimum and the maximum of the rounds as JSON and as the README's table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.spark import cases, session_cases
from tests import servers

README = Path(__file__).parent.parent / "README.rst"
BEGIN, END = ".. table-begin\n", ".. table-end\n"
_numbers = itertools.count(1)
Case = Callable[[], dict[str, float]]


def chosen(server: Any, folder: Path, rows: int, seconds: int, spark: Callable[[], Any]) -> dict[str, Case]:
    """Return the cases by name.  Each run of a case creates a new topic and a new directory."""

    def fresh() -> tuple[str, Path]:
        number = next(_numbers)
        return f"bench-{number}", folder / str(number)

    def plain(run: Any, size: int = 100, **more: bool) -> Case:
        return lambda: run(server, *fresh(), rows, size, **more)

    def in_spark(size: int = 100, count: int = rows, **more: str) -> Case:
        return lambda: session_cases.through_spark(spark(), server, *fresh(), count, size, **more)

    def latency(file_system: str) -> Case:
        return lambda: session_cases.latency(spark(), server, *fresh(), 1000, seconds, file_system)

    def segments(per_flush: int, **more: bool) -> Case:
        return lambda: cases.read_segments(fresh()[1], rows, 100, per_flush, **more)

    def cut(tasks: int) -> Case:
        return in_spark(maxOffsetsPerTrigger=str(rows // 4), minPartitions=str(tasks))

    many = f"{rows // 4:,}"
    return {
        "recorder": plain(cases.receive),
        "recorder, 1 kB": plain(cases.receive, 1000),
        "recorder, --parquet": plain(cases.receive, parquet=True),
        "recorder, 1 kB, --parquet": plain(cases.receive, 1000, parquet=True),
        "plain Reader -> Parquet": plain(cases.plain_reader),
        "reading, flushes of 1,000 rows": segments(1000),
        "reading, flushes of 100 rows": segments(100),
        "reading, flushes of 10 rows": segments(10),
        "reading, Parquet files": segments(1000, sealed=True),
        "topic -> noop": in_spark(),
        "topic -> noop, half the rows": in_spark(count=rows // 2),
        "topic -> noop, a quarter of the rows": in_spark(count=rows // 4),
        "topic -> noop, 1 kB": in_spark(1000),
        f"topic -> noop, batches up to {many}, 1 task": cut(1),
        f"topic -> noop, batches up to {many}, 2 tasks": cut(2),
        f"topic -> noop, batches up to {many}, 4 tasks": cut(4),
        "topic -> Parquet": lambda: session_cases.to_parquet(spark(), server, *fresh(), rows, 100),
        "Parquet -> Parquet": lambda: session_cases.files_to_parquet(spark(), fresh()[1], rows, 100),
        "rate source -> Parquet": lambda: session_cases.rate_to_parquet(spark(), fresh()[1], rows),
        "rate source -> noop": lambda: session_cases.rate_source(spark(), fresh()[1], rows),
        "text files -> noop": lambda: session_cases.text_files(spark(), fresh()[1], rows, 100),
        "Parquet -> topic": lambda: session_cases.streaming_sink(spark(), server, *fresh(), rows, 100),
        "Parquet -> topic, one batch": lambda: session_cases.batch_sink(spark(), server, *fresh(), rows, 100),
        "publish -> foreachBatch at 1,000/s": latency(session_cases.WITH_CRC),
        "publish -> foreachBatch at 1,000/s, RawLocalFs": latency(session_cases.RAW),
    }


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median, the minimum and the maximum of each figure."""
    return {
        name: {
            "median": round(statistics.median(values), 2),
            "least": round(min(values), 2),
            "most": round(max(values), 2),
        }
        for name in rounds[0]
        for values in [[one[name] for one in rounds]]
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the README's table."""
    lines = []
    for name, figures in results.items():
        if "p50_ms" in figures:
            p50, p99 = figures["p50_ms"], figures["p99_ms"]
            middle, spread = f"p50 {p50['median']:.0f} ms", f"{p50['least']:.0f} - {p50['most']:.0f}"
            spent = f"p99 {p99['median']:.0f} ms"
        else:
            rate, used = figures["per_second"], figures
            middle, spread = f"{rate['median']:,.0f}", f"{rate['least']:,.0f} - {rate['most']:,.0f}"
            spent = f"{used['cpu_us']['median']:.1f}"
            kinds = [
                f"{used[k]['median']:.1f}"
                for k in ("cpu_us_nsqd", "cpu_us_source", "cpu_us_jvm", "cpu_us_workers")
                if k in used
            ]
            spent += f" ({', '.join(kinds)})" if kinds else ""
        lines.append((name, middle, spread, spent))
    head = ("case", "rows a second", "least - most", "CPU us a row (nsqd, source, JVM, workers)")
    widths = [max(len(line[at]) for line in [head, *lines]) for at in range(4)]
    rule = " ".join("=" * width for width in widths)
    text = [
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *lines]
    ]
    return "\n".join([rule, text[0], rule, *text[1:], rule]) + "\n"


def write_readme(text: str) -> None:
    """Replace the table between the README's markers by *text*."""
    page = README.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def sessions() -> Iterator[Any]:
    """Yield the same session each time, created at its first use."""
    from gnsq_lite.spark import session

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
    spark = session("local[2]", "bench", conf)
    spark.sparkContext.setLogLevel("OFF")
    while True:
        yield spark


def take_turns(every: dict[str, Case], rounds: int, warm_up: bool, until: float) -> dict[str, list[dict[str, float]]]:
    """Run the cases, round by round, and return the figures of each case.  No round begins after *until*."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in every}
    for number in range(0 if warm_up else 1, rounds + 1):
        if number > 1 and time.monotonic() > until:
            break
        for name, case in every.items():
            figures = case()
            if number:
                found[name].append(figures)
            shown = {key: round(value, 2) for key, value in figures.items()}
            print(number or "warm-up", name, json.dumps(shown), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows and one round, to check that it works")
    parser.add_argument("--rows", type=int, help="rows of every case (default 500000)")
    parser.add_argument("--rounds", type=int, help="measured rounds (default 5)")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no round after this time (default 15)")
    parser.add_argument("--only", nargs="*", default=[], help="only cases whose name contains one of these texts")
    parser.add_argument("--readme", action="store_true", help="write the table into README.rst")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    rows = given.rows or (4000 if given.quick else 500_000)
    rounds = given.rounds or (1 if given.quick else 5)
    one_session = sessions()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with servers.real_nsqd(folder, "nsqd", mem_queue_size=10_000_000) as server:
            every = chosen(server, folder, rows, 2 if given.quick else 10, lambda: next(one_session))
            every = {name: case for name, case in every.items() if not given.only or any(p in name for p in given.only)}
            found = take_turns(every, rounds, not given.quick, until)
    results = {name: summary(figures) for name, figures in found.items()}
    about = {"rows": rows, "rounds": max(map(len, found.values())), "python": platform.python_version()}
    about.update(machine=platform.machine(), at=time.ctime(), load=str(os.getloadavg()))
    print(json.dumps({"about": about, "results": results}, indent=1))
    print(table(results))
    if given.readme:
        write_readme(table(results))


if __name__ == "__main__":
    main()
