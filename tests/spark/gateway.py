"""A real S3 server for the tests: versitygw over a folder, found by GNSQ_VERSITYGW, a program built elsewhere."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

#: Nothing, too, where the client is missing.
PROGRAM = os.environ.get("GNSQ_VERSITYGW", "") if importlib.util.find_spec("obstore") else ""
#: A folder of Hadoop's S3 client: hadoop-aws of the version of PySpark's Hadoop, and the AWS SDK's bundle it names.
HADOOP_AWS = os.environ.get("GNSQ_HADOOP_AWS", "")


class Gateway:
    """One server with the bucket ``bucket``, on a port of its own that it keeps when it is killed and restarted."""

    #: What may be killed apart.
    PARTS: tuple[tuple[str, ...], ...] = ((), ())

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "data" / "bucket").mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        where = ["--port", f"127.0.0.1:{self.port}", "--access", "gnsq", "--secret", "gnsq-secret", "--quiet"]
        with (self._folder / "gateway.log").open("ab") as log:
            command = [PROGRAM, *where, "posix", str(self._folder / "data")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                assert self._process.poll() is None, (self._folder / "gateway.log").read_text()
                time.sleep(0.05)

    def until_it_writes(self) -> None:
        """It does as soon as it has started."""

    def kill(self, *parts: str) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)

    @property
    def url(self) -> str:
        """Where Hadoop's clients find the bucket."""
        return "s3a://bucket"

    def options(self, spool: str) -> dict[str, str]:
        """Return the source's options for a spool in the bucket."""
        return {
            "recording": f"{self.url}/{spool}",
            "nsq.storage.endpoint": f"http://127.0.0.1:{self.port}",
            "nsq.storage.accessKeyId": "gnsq",
            "nsq.storage.secretAccessKey": "gnsq-secret",
            "nsq.storage.region": "us-east-1",
            "nsq.storage.allowHttp": "true",
        }

    def hadoop(self) -> dict[str, str]:
        """Return the settings of a session whose s3a:// is this server."""
        given = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "endpoint.region": "us-east-1",
            "access.key": "gnsq",
            "secret.key": "gnsq-secret",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        jars = ",".join(str(jar) for jar in sorted(Path(HADOOP_AWS).glob("*.jar")))
        return {"spark.jars": jars, **{f"spark.hadoop.fs.s3a.{name}": text for name, text in given.items()}}
