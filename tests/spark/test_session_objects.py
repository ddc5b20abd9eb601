"""A query whose spool is on a real S3 server, in a real Spark session: tasks read objects, its driver moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.servers import ServerHandle
from tests.spark.conftest import spark_session, stop_spark
from tests.spark.gateway import HADOOP_AWS, LACKS, Gateway
from tests.spark.kill_harness import harness
from tests.spark.streams import Feed, Sink, stream, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

if not LACKS:

    @pytest.mark.rule("PIPE-5")
    def test_a_query_goes_on_where_nothing_of_its_first_driver_is_left(
        nsqd: ServerHandle, topic: str, tmp_path: Path
    ) -> None:
        spark = spark_session("local[2]")
        gateway = Gateway()
        feed = Feed(nsqd, topic, tmp_path)
        sink = Sink()
        where: dict[str, Any] = gateway.options("clicks")
        try:
            for run in range(2):
                feed.publish(1000 * run, 1000)
                query = stream(spark, feed, sink, **where)
                until(lambda n=1000 * run + 1000, q=query: len(sink.rows()) >= n or not q.isActive)
                query.stop()
                until(lambda: feed.channel()["clients"] == [])
                assert sink.rows() == list(range(1000 * run + 1000)), query.exception()
            assert not (tmp_path / "spool").exists()
            assert feed.channel()["in_flight_count"] == feed.channel()["depth"] == 0
        finally:
            gateway.kill()


if not LACKS and HADOOP_AWS:

    @pytest.mark.timeout(1200)
    @pytest.mark.rule("PIPE-2")
    @pytest.mark.rule("PIPE-5")
    def test_killed_drivers_go_on_elsewhere_with_spool_and_checkpoint_on_the_store(
        nsqd: ServerHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop_spark()  # the harness runs sessions of its own, each on an empty disk
        store = Gateway()
        place = {"options": store.options("spool"), "conf": store.hadoop(), "checkpoint": f"{store.url}/checkpoint"}
        monkeypatch.setenv("GNSQ_HARNESS_PLACE", json.dumps(place))
        try:
            base = tmp_path / "harness"
            result = harness(base, nsqd, messages=8_000, kills=3, seed=3, quiet=True)
        finally:
            store.kill()
        told = {name: result[name] for name in ("kills", "lost", "duplicates", "replays_that_differ")}
        assert told == {"kills": 3, "lost": 0, "duplicates": 0, "replays_that_differ": 0}
        assert not (base / "checkpoint").exists()
