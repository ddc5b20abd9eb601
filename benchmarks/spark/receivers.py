"""Measure ``receiver=executors`` on a standalone cluster of two workers: ``python -m benchmarks.spark.receivers``.

Receivers 1, 2 and 4 take turns, round by round, after one round that is thrown away.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.spark import session_cases
from gnsq_lite.spark import session
from tests import servers
from tests.spark.standalone import Standalone

RECEIVERS = (1, 2, 4)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent.parent)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cluster = Standalone(folder / "cluster", 2, cores=2)
        try:
            with servers.real_nsqd(folder, "nsqd", mem_queue_size=10_000_000) as server:
                measure(server, folder, cluster.url, given.rows, given.rounds)
        finally:
            cluster.stop()


def measure(server: servers.ServerHandle, folder: Path, url: str, rows: int, rounds: int) -> None:
    """Print each run's rows per second and CPU."""
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
    conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "1g"}
    spark = session(url, "receivers", conf)
    spark.sparkContext.setLogLevel("OFF")
    for number in range(rounds + 1):
        for count in RECEIVERS:
            name = f"receivers-{number}-{count}"
            more = {"receiver": "executors", "receivers": str(count)}
            found = session_cases.through_spark(spark, server, name, folder / name, rows, 100, **more)
            shown = f"{found['per_second']:,.0f} rows/s, {found['cpu_us']:.1f} us CPU a row"
            nsqd = f"{found['cpu_us_nsqd']:.1f} of them nsqd's"
            print(number or "warm-up", f"{count} receivers: {shown}, {nsqd}, load {os.getloadavg()[0]:.1f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
