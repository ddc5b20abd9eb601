"""A real HDFS for the tests: a NameNode and DataNodes of the jars that GNSQ_HADOOP_HDFS names a folder of.

Those are Maven's ``hadoop-client-minicluster``, ``hadoop-client-api`` and ``hadoop-client-runtime``, and the loggers
they want: ``slf4j-api``, ``slf4j-reload4j``, ``reload4j`` and ``commons-logging``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

#: Nothing, too, where the client is missing.
JARS = os.environ.get("GNSQ_HADOOP_HDFS", "") if importlib.util.find_spec("hdfs_native") else ""
_SERVER = "org.apache.hadoop.hdfs.server"
_NAME, _DATA = f"{_SERVER}.namenode.NameNode", f"{_SERVER}.datanode.DataNode"


class Hdfs:
    """A NameNode and DataNodes, in processes of their own, and as many copies of a block as there are DataNodes.

    The NameNode keeps its port when it is killed and started again.
    """

    #: What may be killed apart.
    PARTS: tuple[tuple[str, ...], ...] = (("data",), ("name",), ("name", "data"))

    def __init__(self, folder: Path, data_nodes: tuple[str, ...] = ("data",)) -> None:
        self._folder, self._data_nodes = folder, data_nodes
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._configure()
        self._run("name", "-format", "-nonInteractive").wait(120)
        self.start()
        self.until_it_writes()

    def _configure(self) -> None:
        any_port = ("dfs.namenode.http-address", "dfs.datanode.address", "dfs.datanode.http.address")
        given = {
            "fs.defaultFS": f"hdfs://127.0.0.1:{self.port}",
            "dfs.namenode.name.dir": str(self._folder / "name"),
            "dfs.replication": str(len(self._data_nodes)),
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.redundancy.interval.seconds": "1",
            "dfs.namenode.reconstruction.pending.timeout-sec": "5",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            **dict.fromkeys(any_port, "127.0.0.1:0"),
        }
        lines = [f"<property><name>{name}</name><value>{text}</value></property>" for name, text in given.items()]
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self._folder / name).write_text("<configuration>" + "".join(lines) + "</configuration>")

    def _run(self, node: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        command = [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{self._folder}:{JARS}/*"]
        command += [_NAME] if node == "name" else [_DATA, f"-Ddfs.datanode.data.dir={self._folder / node}"]
        with (self._folder / f"{node}.log").open("ab") as log:
            return subprocess.Popen([*command, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        """Start what does not run; it takes a while."""
        for node in ("name", *self._data_nodes):
            if node not in self._processes:
                self._processes[node] = self._run(node)

    def kill(self, *nodes: str) -> None:
        """End *nodes*, both without any, as a power cut would."""
        for node in nodes or tuple(self._processes):
            process = self._processes.pop(node, None)
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait(30)

    def pause(self, node: str) -> None:
        """Let *node* keep its connections, and answer nothing."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def go_on(self, node: str) -> None:
        self._processes[node].send_signal(signal.SIGCONT)

    def until_it_writes(self) -> None:
        from hdfs_native import Client

        deadline = time.monotonic() + 180
        client = Client(f"hdfs://127.0.0.1:{self.port}", {"dfs.client.failover.max.attempts": "1"})
        while not self._takes(client):
            told = [(self._folder / f"{node}.log").read_text()[-2000:] for node in ("name", *self._data_nodes)]
            assert time.monotonic() < deadline, told
            time.sleep(0.3)

    def _takes(self, client: Any) -> bool:
        from hdfs_native import WriteOptions

        try:
            with client.create("/begun", WriteOptions(overwrite=True)) as file:
                file.write(b"x")
        except Exception:  # refused connections, safe mode, no DataNode: it is not up yet
            return False
        return True

    def blocks(self, node: str) -> set[str]:
        """Return the blocks that a DataNode has whole."""
        return {path.name for path in (self._folder / node).rglob("finalized/**/blk_*") if path.suffix != ".meta"}

    def options(self, spool: str) -> dict[str, str]:
        """Return the source's options for a spool there."""
        return {"spoolDir": f"{self.url}/spools/{spool}"}

    def hadoop(self) -> dict[str, str]:
        """Return the settings of a session that writes there."""
        return {"spark.hadoop.dfs.replication": str(len(self._data_nodes))}

    @property
    def url(self) -> str:
        """It, as Spark names it."""
        return f"hdfs://127.0.0.1:{self.port}"
