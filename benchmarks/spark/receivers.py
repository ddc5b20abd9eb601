"""Measure ``receiver=executors`` on a standalone cluster: ``python -m benchmarks.spark.receivers [--cores 0.15]``.

Receivers 1, 2 and 4 take turns, round by round, after one round that is thrown away.  With ``--cores`` there are four
workers of one task each, and each one's receiver may use so many cores and no more: equal machines, on one that is
not busy.  ``--nsqd-cores`` does the same to nsqd.  Quotas need control groups, and the right to make some.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.spark import cpu, session_cases
from benchmarks.spark.quota import Quotas
from gnsq_lite.spark import session
from tests import servers
from tests.spark.standalone import Standalone


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000, help="of a run; with --cores of each of its receivers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--receivers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--cores", type=float, help="what each receiver may use; as much as there is")
    parser.add_argument("--epoch-ms", default="1000", help="how long a task receives")
    parser.add_argument("--nsqd-cores", type=float, help="what nsqd may use")
    parser.add_argument("--cgroup", type=Path, default=Path("/sys/fs/cgroup/cpu"), help="a hierarchy for --cores")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # the cluster ends with it
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent.parent)
    workers, cores = (2, 2) if given.cores is None else (max(given.receivers), 1)
    with tempfile.TemporaryDirectory() as temporary, Quotas(given.cgroup) as quotas:
        folder = Path(temporary)
        cluster = Standalone(folder / "cluster", workers, cores=cores)
        try:
            with servers.real_nsqd(folder, "nsqd", mem_queue_size=10_000_000) as server:
                Receivers(server, folder, cluster, quotas, given).measure()
        finally:
            cluster.stop()


class Receivers:
    """The runs in one session."""

    def __init__(self, server: Any, folder: Path, cluster: Standalone, quotas: Quotas, given: Any) -> None:
        self._server, self._folder, self._cluster, self._quotas, self._given = server, folder, cluster, quotas, given

    def measure(self) -> None:
        """Print each run's rows per second and CPU."""
        conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        spark = session(self._cluster.url, "receivers", {**conf, "spark.executor.memory": "1g"})
        spark.sparkContext.setLogLevel("OFF")
        self._run(spark, 0, max(self._given.receivers))  # each worker has its Python process then, with its imports
        for number in range(self._given.rounds + 1):
            for count in self._given.receivers:
                self._limit()
                self._run(spark, number, count)
        spark.stop()

    def _limit(self) -> None:
        """Put the processes there are below their quotas."""
        if self._given.cores is not None:
            for executor in self._cluster.executors():
                self._quotas.limit(f"receiver-{executor}", self._given.cores, cpu.below(executor))
        if self._given.nsqd_cores is not None:
            nsqd = [pid for kind, pid in cpu.seconds() if kind == "nsqd"]
            self._quotas.limit("nsqd", self._given.nsqd_cores, nsqd)

    def _run(self, spark: Any, number: int, count: int) -> None:
        rows = self._given.rows * (1 if self._given.cores is None else count)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        more = {"receiver": "executors", "receivers": str(count), "epochMs": self._given.epoch_ms}
        found = session_cases.through_spark(spark, self._server, folder.name, folder, rows, 100, **more)
        spent = ", ".join(f"{kind} {found[f'cpu_us_{kind}']:.1f}" for kind in ("nsqd", "source", "jvm", "workers"))
        shown = f"{found['per_second']:,.0f} rows/s, {found['cpu_us']:.1f} us CPU a row ({spent})"
        print(number or "warm-up", f"{count} receivers: {shown}, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
