"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import running

SUITE = """
import sys
import pytest
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
    assert not nsq_broker.options.like_nsqd

@pytest.mark.nsq_broker(like_nsqd=True, nsqds=2)
def test_a_marker_has_the_options(nsq_broker):
    assert nsq_broker.options.like_nsqd
    assert len(nsq_broker.nodes) == 2
"""

SHOP = """
import json
from gnsq_lite import Worker

worker = Worker(nsqd_tcp_addresses="127.0.0.1:1")
got = []

@worker.handler("orders", "payment", decode=json.loads, nsqd_tcp_addresses="127.0.0.1:2", lookupd_http_addresses="x:3")
def pay(order, message):
    got.append(order)
    worker.writer().publish("receipts", message.body)

@worker.handler("receipts", "mail")
def mail(message):
    got.append(message.body)
"""

WORKERS = """
import time
import pytest
import shop

def wait_for(count):
    until = time.monotonic() + 60
    while len(shop.got) < count and time.monotonic() < until:
        time.sleep(0.005)
    assert len(shop.got) == count

@pytest.mark.parametrize("target", [shop, shop.worker, "shop", "shop:worker"])
@pytest.mark.parametrize("again", range(2))
def test_a_fresh_copy_of_the_worker_runs(nsq_worker, nsq_writer, target, again):
    running = nsq_worker(target, max_attempts=7)
    shop.got.clear()
    nsq_writer.publish("orders", b"1")
    wait_for(2)
    assert (shop.got, running.stats()[0].state) == ([1, b"1"], "connected")
    assert running is not shop.worker and not shop.worker.readers

def test_two_copies_may_run_in_one_test(nsq_worker):
    assert [len(nsq_worker(shop).stats()) for _ in range(2)] == [2, 2]

def test_the_original_is_as_before():
    assert shop.worker.writer.__self__ is shop.worker
"""


@pytest.mark.program
@pytest.mark.parametrize("how", ["plain", "patched", "xdist"])
def test_a_worker_runs_in_any_number_of_tests(tmp_path: Path, how: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(WORKERS, encoding="utf-8")
    pytest_itself = ["-m", "gevent.monkey", "--module", "pytest"] if how == "patched" else ["-m", "pytest"]
    flags = ["-p", "gnsq_lite.contrib.pytest_plugin", "-p", "no:cacheprovider", "-W", "error", "-q"]
    flags += ["-p", "xdist", "-n", "2"] if how == "xdist" else []
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": "."}
    with running([*pytest_itself, *flags, "."], tmp_path, env=env) as program:
        assert program.ends() == 0, program.output
        assert "10 passed" in program.output


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
        assert "4 passed" in program.output
