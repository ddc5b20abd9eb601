"""An S3 server for the tests: moto behind a proxy that drops or delays answers, or cuts all connections."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.proxy import Proxy

#: Name of a missing package that the tests with an S3 server need, or None.
LACKS = next((name for name in ("obstore", "moto", "flask") if importlib.util.find_spec(name) is None), None)
#: A folder of Hadoop's S3 client: hadoop-aws of the version of PySpark's Hadoop, and the AWS SDK's bundle it names.
HADOOP_AWS = os.environ.get("GNSQ_HADOOP_AWS", "")

_numbers = itertools.count()


@functools.cache
def moto() -> tuple[str, Path]:
    """Start moto's server, which keeps objects in memory until this process ends; return its address and its log."""
    log = Path(tempfile.mkdtemp(prefix="moto-")) / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    atexit.register(process.kill)
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return f"127.0.0.1:{port}", log
        except OSError:
            assert time.monotonic() < deadline
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)


class Gateway:
    """One bucket of the server, with a separate proxy.

    :meth:`kill` cuts all connections and refuses new connections, like a killed server; the objects stay.
    """

    def __init__(self) -> None:
        address, self.log = moto()
        self.bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
        made = urllib.request.Request(f"http://{address}/{self.bucket}", method="PUT")
        urllib.request.urlopen(made, timeout=60).close()
        self.proxy = Proxy(address)

    def start(self) -> None:
        self.proxy.clear()

    def kill(self) -> None:
        self.proxy.refusing = True
        self.proxy.reset()

    def answered(self, status: int, method: str) -> int:
        """Return the number of requests with *method* for this bucket that the server answered with *status*."""
        lines = self.log.read_text(errors="replace").splitlines()
        return sum(f"{method} /{self.bucket}/" in line and f" {status} -" in line for line in lines)

    @property
    def url(self) -> str:
        """Where Hadoop's clients find the bucket."""
        return f"s3a://{self.bucket}"

    def options(self, spool: str) -> dict[str, str]:
        """Return the source's options for a spool in the bucket."""
        settings = {f"nsq.storage.{name}": text for name, text in self.storage().items()}
        return {"recording": f"{self.url}/{spool}", **settings}

    def storage(self) -> dict[str, str]:
        """Return the settings of the store."""
        return {
            "endpoint": f"http://{self.proxy.address}",
            "accessKeyId": "gnsq",
            "secretAccessKey": "gnsq-secret",
            "region": "us-east-1",
            "allowHttp": "true",
        }

    def hadoop(self) -> dict[str, str]:
        """Return the settings of a session whose s3a:// is this server."""
        given = {
            "endpoint": f"http://{self.proxy.address}",
            "endpoint.region": "us-east-1",
            "access.key": "gnsq",
            "secret.key": "gnsq-secret",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        jars = ",".join(str(jar) for jar in sorted(Path(HADOOP_AWS).glob("*.jar")))
        return {"spark.jars": jars, **{f"spark.hadoop.fs.s3a.{name}": text for name, text in given.items()}}
