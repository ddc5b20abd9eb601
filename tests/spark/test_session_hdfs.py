"""A query whose spool is on an HDFS of two DataNodes, with two copies of each block, whose nodes are killed in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.hadoop import JARS, Hdfs
from tests.spark.test_again import server
from tests.spark.test_session_source import Feed, Sink, stream, until

__all__ = ["server"]  # the fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


class Flow:
    """Publishes numbers, 100 in a tenth of a second, until it is told to end; *count* is how many."""

    def __init__(self, feed: Feed) -> None:
        self.count = 0
        self.may_go = threading.Event()
        self.may_go.set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(feed,))
        self._thread.start()

    def _run(self, feed: Feed) -> None:
        with Writer(feed.server.tcp_address) as writer:
            while not self._ended.wait(0.1):
                if not self.may_go.is_set():
                    continue
                writer.multipublish(feed.topic, [b"%d" % n for n in range(self.count, self.count + 100)])
                self.count += 100

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


if JARS:

    @pytest.fixture
    def hdfs(tmp_path: Path) -> Iterator[Hdfs]:
        made = Hdfs(tmp_path / "hdfs", ("data", "other"))
        yield made
        made.kill()

    @pytest.mark.rule("PIPE-2")
    @pytest.mark.rule("PIPE-3")
    def test_data_nodes_and_the_name_node_killed_under_a_query_cost_nothing(
        server: ServerHandle, topic: str, tmp_path: Path, hdfs: Hdfs
    ) -> None:
        spark = spark_session("local[2]")
        feed = Feed(server, topic, tmp_path)
        sink = Sink()
        until(lambda: len(hdfs.blocks("data")) == len(hdfs.blocks("other")) > 0)
        query: Any = stream(spark, feed, sink, **hdfs.options("spool"))
        flow = Flow(feed)

        def goes_on() -> None:
            wanted = flow.count + 1500
            until(lambda: len(sink.rows()) >= wanted or not query.isActive)
            assert query.isActive, query.exception()

        try:
            goes_on()
            for node, left in (("other", "data"), ("data", "other")):
                hdfs.kill(node)
                goes_on()
                hdfs.start()
                goes_on()
                flow.may_go.clear()  # what was written meanwhile has one copy for a moment
                until(lambda of=node, on=left: not hdfs.blocks(on) - hdfs.blocks(of))
                flow.may_go.set()
            hdfs.kill("name")
            time.sleep(5.0)
            hdfs.start()
            goes_on()
        finally:
            flow.end()
        until(lambda: len(sink.rows()) >= flow.count or not query.isActive)
        query.stop()
        assert query.exception() is None
        assert sink.rows() == list(range(flow.count))
        assert not (tmp_path / "spool").exists()
