"""The page docs/spark.rst: its blocks run, its option tables are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gnsq_lite import Writer
from tests import docblocks
from tests.programs import running
from tests.servers import ServerHandle
from tests.spark.option_tables import PAGE, page_with_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


#: What a reader would look at after the page's last block.
AFTERWARDS = """
query.processAllAvailable()
assert query.isActive, query.exception()
query.stop()
relay.stop()
spark.stop()
"""


def test_the_page_runs_as_pasted(nsqd: ServerHandle, tmp_path: Path) -> None:
    nsqd.http("POST", "/topic/create?topic=clicks")
    nsqd.http("POST", "/channel/create?topic=clicks&channel=spark")
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish("clicks", [b"%d" % n for n in range(20)])
    (program,) = docblocks.programs(PAGE)
    source = program.text.replace("127.0.0.1:4150", nsqd.tcp_address) + AFTERWARDS
    (tmp_path / "page.py").write_text(source, encoding="utf-8")
    env = {"TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    with running(["page.py"], tmp_path, env=env) as page:
        assert page.ends(400) == 0, page.output
    assert nsqd.stats("ids")["message_count"] == 1000
    assert nsqd.stats("ids-again")["message_count"] == 1000


def test_the_option_tables_are_those_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_tables(), "run: python -m tests.spark.option_tables"


def test_the_benchmarks_run(tmp_path: Path) -> None:
    from tests import servers

    if servers.nsqd_program() is None:
        return  # the benchmarks measure against the real one only
    command = [sys.executable, "-m", "benchmarks.spark", "--quick", "--only", "recorder", "plain", "reading"]
    done = subprocess.run(command, cwd=PAGE.parent.parent, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "reading, flushes of 10 rows" in done.stdout
