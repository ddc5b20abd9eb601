"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import running

SUITE = """
import sys
from gnsq_lite import Reader

def test_nothing_is_loaded_before_a_fixture_is_used():
    assert not {"gevent", "ssl", "urllib3"} & EARLY

def test_the_broker_takes_what_the_writer_sends(nsq_broker, nsq_writer):
    nsq_writer.publish("t", b"hello")
    seen = []
    with Reader("t", "ch", lambda m: seen.append(m.body), lookupd_http_addresses=nsq_broker.lookupd_http_address):
        import time
        for _ in range(500):
            if seen:
                break
            time.sleep(0.02)
    assert seen == [b"hello"]

def test_each_test_has_a_broker_of_its_own(nsq_broker):
    assert nsq_broker.node.stats()["topics"] == []
"""


@pytest.mark.program
@pytest.mark.parametrize("how", ["plain", "patched"])
def test_the_fixtures_work_and_cost_nothing_where_they_are_not_used(tmp_path: Path, how: str) -> None:
    (tmp_path / "conftest.py").write_text("import builtins, sys\nbuiltins.EARLY = set(sys.modules)\n", encoding="utf-8")
    suite = SUITE if how == "plain" else SUITE.replace("assert not {", "assert {")
    (tmp_path / "test_it.py").write_text(suite, encoding="utf-8")
    pytest_itself = ["-m", "pytest"] if how == "plain" else ["-m", "gevent.monkey", "--module", "pytest"]
    flags = ["-p", "gnsq_lite.contrib.pytest_plugin", "-p", "no:cacheprovider", "-W", "error", "-q"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    with running([*pytest_itself, *flags, "."], tmp_path, env=env) as program:
        assert program.ends() == 0, program.output
        assert "3 passed" in program.output
