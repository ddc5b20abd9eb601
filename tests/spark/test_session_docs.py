"""The page docs/spark.rst: its blocks run, its option tables are those of the code."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from tests import docblocks
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.option_tables import PAGE, page_with_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def settle(query: Any, nsqd: ServerHandle) -> None:
    """Wait until the page's query has read what there is: a small machine starts one Python process at a time."""
    deadline = time.monotonic() + 120
    while nsqd.stats("clicks", "spark").get("depth") != 0 and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)


def test_every_block_runs(nsqd: ServerHandle, tmp_path: Path) -> None:
    nsqd.http("POST", "/topic/create?topic=clicks")
    for channel in ("spark", "nightly"):
        nsqd.http("POST", f"/channel/create?topic=clicks&channel={channel}")
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish("clicks", [b"%d" % n for n in range(20)])
    spark_session("local[2]")
    names: dict[str, Any] = {}
    found = list(docblocks.blocks(PAGE))
    assert len(found) >= 4
    try:
        for line, source in found:
            here = source.replace("127.0.0.1:4150", nsqd.tcp_address).replace(
                "mkdtemp()", f"mkdtemp(dir={str(tmp_path)!r})"
            )
            exec(compile("\n" * (line - 1) + here, str(PAGE), "exec"), names)
            settle(names["query"], nsqd)
        assert names["query"].isActive, names["query"].exception()
    finally:
        if "query" in names:
            names["query"].stop()
    assert names["batch"].count() == 20
    assert nsqd.stats("ids")["message_count"] == 1000


def test_the_option_tables_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_tables(), "run: python -m tests.spark.option_tables"


def test_the_benchmarks_run(tmp_path: Path) -> None:
    from tests import servers

    if servers.nsqd_program() is None:
        return  # the benchmarks measure against the real one only
    command = [sys.executable, "-m", "benchmarks.spark", "--quick", "--only", "receiver with", "plain", "segments"]
    done = subprocess.run(command, cwd=PAGE.parent.parent, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "reading segments, flushes of 10 rows" in done.stdout
