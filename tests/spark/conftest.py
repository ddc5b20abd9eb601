"""The Spark tests need pyspark and pyarrow, those with a session a Java 17 too; what is left out is said in the end."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.spark.compat import JavaMissing, require_java
from tests import servers
from tests.spark.gateway import LACKS

ROOT = Path(__file__).parent.parent.parent

#: Tests of what imports neither Spark nor Arrow.
_ALWAYS = {"test_options.py", "test_compat.py"}


def _why_no_spark() -> str | None:
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    return f'no {" and ".join(missing)}: pip install ".[spark]"' if missing else None


def _why_no_session() -> str | None:
    try:
        require_java()
    except JavaMissing as error:
        return str(error)
    return None


NO_SPARK = _why_no_spark()
NO_SESSION = NO_SPARK or _why_no_session()
NO_STORAGE = None if importlib.util.find_spec("obstore") else 'no obstore: pip install ".[spark-storage]"'


def pytest_ignore_collect(collection_path: Any, config: pytest.Config) -> bool | None:
    """Leave files out whose needs are not met; the summary names the reason."""
    name = collection_path.name
    if collection_path.suffix != ".py" or not name.startswith("test_") or name in _ALWAYS:
        return None
    if NO_SPARK or (NO_SESSION and name.startswith("test_session_")):
        return True
    return True if NO_STORAGE and "_object" in name else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out, and why."""
    if NO_SPARK:
        terminalreporter.write_line(f"tests/spark: nearly all left out: {NO_SPARK}", yellow=True)
        return
    if NO_SESSION:
        terminalreporter.write_line(f"tests/spark: tests with a Spark session left out: {NO_SESSION}", yellow=True)
    if NO_STORAGE:
        terminalreporter.write_line(f"tests/spark: spools on object stores left out: {NO_STORAGE}", yellow=True)
    elif LACKS:
        terminalreporter.write_line(f'tests/spark: no S3 server: no {LACKS}: pip install "moto[server]"', yellow=True)
    for kind in () if NO_SESSION else ("Delta", "Iceberg"):
        if not os.environ.get(f"GNSQ_{kind.upper()}"):
            why = f"set GNSQ_{kind.upper()} to a folder of its jars for this PySpark"
            terminalreporter.write_line(f"tests/spark: no {kind}: {why}", yellow=True)


_current: dict[str, Any] = {}


def spark_session(master: str) -> Any:
    """Return the test run's Spark session; one at a time, a JVM takes half a gigabyte."""
    from gnsq_lite.spark import session

    if _current.get("master") != master:
        stop_spark()
        os.environ["PYTHONPATH"] = str(ROOT)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
        }
        _current.update(master=master, spark=session(master, "tests", conf))
        _current["spark"].sparkContext.setLogLevel("OFF")
    return _current["spark"]


@pytest.fixture
def nsqd() -> Iterator[servers.ServerHandle]:
    """An embedded nsqd, which the processes of Spark reach over TCP."""
    with servers.embedded_nsqd() as server:
        yield server


def stop_spark() -> None:
    """End the session, if there is one; the next :func:`spark_session` makes another."""
    if _current:
        _current.pop("spark").stop()
        _current.clear()


@pytest.fixture(scope="session", autouse=True)
def _stop_spark() -> Iterator[None]:
    yield
    stop_spark()
