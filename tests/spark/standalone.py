"""A standalone Spark cluster on this machine: a master, and workers that start executors of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pyspark

from tests import servers

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Standalone:
    """One master and *workers* workers, which offer so many *cores* each."""

    def __init__(self, folder: Path, workers: int, cores: int = 1) -> None:
        self._folder = folder
        folder.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        port = servers.free_port()
        self.url = f"spark://127.0.0.1:{port}"
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master", "org.apache.spark.deploy.master.Master", *where, "--port", str(port))
        self._await("master", "I have been elected leader")
        for number in range(workers):
            limits = ["--cores", str(cores), "--memory", "1200m", "--work-dir", str(folder / f"work{number}")]
            self._start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *where, *limits, self.url)
        for number in range(workers):
            self._await(f"worker{number}", "Successfully registered with master")

    def _start(self, name: str, *command: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        with (self._folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [SPARK_CLASS, *command], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._processes.append(started)

    def _await(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 180
        while text not in (self._folder / f"{name}.log").read_text(errors="replace"):
            assert time.monotonic() < deadline, (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]
            time.sleep(0.1)

    def executors(self) -> list[int]:
        """Return the pids of the executors that live now."""
        sessions = {process.pid for process in self._processes}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = os.getsid(int(entry.name)) in sessions
                if ours and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
        return sorted(found)

    def stop(self) -> None:
        """End all of it."""
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait(30)
