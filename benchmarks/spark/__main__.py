"""Measure ``format("nsq")`` against a real nsqd: ``python -m benchmarks.spark [--quick] [--only NAME ...]``.

Each case checks its work; the figures are the median of the rounds, with the least and the most, as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.spark import cases, session_cases
from tests import servers

_numbers = itertools.count(1)
Case = Callable[[], dict[str, float]]


def chosen(server: Any, folder: Path, rows: int, quick: bool, spark: Callable[[], Any]) -> dict[str, Case]:
    """Return the cases by name; each call makes a topic and a directory of its own."""

    def fresh() -> tuple[str, Path]:
        number = next(_numbers)
        return f"bench-{number}", folder / str(number)

    def plain(run: Any, size: int, count: int) -> Case:
        return lambda: run(server, *fresh(), count, size)

    def in_spark(size: int, count: int, **more: str) -> Case:
        return lambda: session_cases.through_spark(spark(), server, *fresh(), count, size, **more)

    found: dict[str, Case] = {
        "receive 100 B": plain(cases.receive, 100, rows),
        "receive 1 kB": plain(cases.receive, 1000, rows // 4),
        "plain Reader + Parquet 100 B": plain(cases.plain_reader, 100, rows),
        "read segments 100 B": lambda: cases.read_segments(fresh()[1], rows, 100),
        "read segments 100 B, 10 rows a flush": lambda: cases.read_segments(fresh()[1], rows // 10, 100, 10),
        "spark noop 100 B": in_spark(100, rows),
        "spark noop 1 kB": in_spark(1000, rows // 4),
        "spark noop 100 B inline": in_spark(100, rows, spoolTransfer="inline"),
        "spark noop 100 B executors": in_spark(100, rows, receiver="executors"),
        "spark text files 100 B": lambda: session_cases.text_files(spark(), fresh()[1], rows, 100),
        "spark socket 100 B": lambda: session_cases.socket_lines(spark(), fresh()[1], rows // 10, 100),
        "spark sink 100 B": lambda: session_cases.streaming_sink(spark(), server, *fresh(), rows, 100),
        "spark latency 1000/s": lambda: session_cases.latency(spark(), server, *fresh(), 1000, 3 if quick else 15),
    }
    for part in (4, 2):
        found[f"spark noop 100 B, {rows // part} rows"] = in_spark(100, rows // part)
        found[f"spark noop 100 B, {part} partitions"] = in_spark(
            100, rows, maxOffsetsPerTrigger=str(rows // 4), minPartitions=str(part)
        )
    return found


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return median, least and most of each figure."""
    return {
        name: {
            "median": round(statistics.median(values), 1),
            "least": round(min(values), 1),
            "most": round(max(values), 1),
        }
        for name in rounds[0]
        for values in [[one[name] for one in rounds]]
    }


def sessions() -> Iterator[Any]:
    """Yield the one session, made at its first use."""
    from gnsq_lite.spark import session

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
    spark = session("local[2]", "bench", conf)
    spark.sparkContext.setLogLevel("OFF")
    while True:
        yield spark


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, one round: does it work?")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name contains one of these")
    given = parser.parse_args()
    rows = given.rows or (4000 if given.quick else 1_000_000)
    one_session = sessions()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with servers.real_nsqd(folder, "nsqd", mem_queue_size=10_000_000) as server:
            every = chosen(server, folder, rows, given.quick, lambda: next(one_session))
            for name, case in every.items():
                if given.only and not any(part in name for part in given.only):
                    continue
                rounds = [case() for _ in range(given.rounds or (1 if given.quick else 3))]
                results[name] = summary(rounds)
                print(name, json.dumps(results[name]), flush=True)
    about = {"rows": rows, "python": platform.python_version(), "machine": platform.machine(), "at": time.ctime()}
    print(json.dumps({"about": about, "results": results}, indent=1))


if __name__ == "__main__":
    main()
