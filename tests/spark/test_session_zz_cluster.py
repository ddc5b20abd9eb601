"""On executors that are processes of their own; last by name, for it needs a session of another master."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local-cluster[2,1,1024]")


@pytest.mark.rule("PIPE-5")
def test_executors_get_every_row_once_over_a_restart(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    source = {
        "topic": topic,
        "channel": "c",
        "nsqdTCPAddresses": nsqd.tcp_address,
        "recording": str(tmp_path / "spool"),
    }
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=c")
    batches: dict[int, list[int]] = {}
    changed = []

    def note(frame: Any, batch_id: int) -> None:
        frame = frame.select("body").persist()
        rows = sorted(int(row.body) for row in frame.collect())
        if sorted(int(row.body) for row in frame.unpersist().collect()) != rows:
            changed.append(batch_id)  # a second action over the same batch
        batches[batch_id] = rows

    published = 0
    for _ in range(2):
        with Writer(nsqd.tcp_address) as writer:
            for at in range(published, published + 5000, 500):
                writer.multipublish(topic, [b"%d" % n for n in range(at, at + 500)])
        published += 5000
        frame = spark.readStream.format("nsq").options(**source).load()
        writer_of = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer_of.start()
        wait_for(lambda q=query, n=published: sum(map(len, batches.values())) >= n or not q.isActive, 120.0)  # type: ignore[misc]
        query.stop()
    assert sorted(row for rows in batches.values() for row in rows) == list(range(published))
    assert changed == []
    wait_for(lambda: nsqd.stats(topic, "c")["in_flight_count"] == 0, 20.0)


ROWS = 15_000


def failing_once(address: str, topic: str) -> Any:
    """Return a function of a row that raises, in a task's first attempt, after nsqd has 10,000 of its rows.

    Rows must have 8 kB, because the sink checks 64 MB of a task before it sends the first row.
    """
    calls = [0]

    def give(body: str) -> str:
        import json
        import urllib.request

        from pyspark import TaskContext

        calls[0] += 1
        deadline = time.monotonic() + 120
        while calls[0] == 12_500 and TaskContext.get().attemptNumber() == 0:
            with urllib.request.urlopen(f"http://{address}/stats?format=json&topic={topic}") as reply:
                topics = json.load(reply)["topics"]
            if topics and topics[0]["message_count"] >= 10_000:
                time.sleep(0.5)  # the last answers arrive, and with them the marker
                raise RuntimeError("the task dies here")
            assert time.monotonic() < deadline, "the sink did not get so far"
            time.sleep(0.05)
        return body

    return give


@pytest.mark.parametrize(("kind", "markers"), [("stream", True), ("stream", False), ("batch", True)])
def test_a_sink_task_tried_again_goes_on_behind_its_marker(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path, kind: str, markers: bool
) -> None:
    from pyspark.sql.functions import udf

    nsqd.http("POST", f"/topic/create?topic={topic}")
    frame = spark.range(ROWS, numPartitions=1).selectExpr("concat(id, ' ', repeat('x', 8000)) AS body")
    frame.write.parquet(str(tmp_path / "rows"))
    options = {"nsqdTCPAddresses": nsqd.tcp_address, "topic": topic, "mpubSize": "100"}
    if markers:
        options["markerDir"] = str(tmp_path / "markers")
    failing = udf(failing_once(nsqd.http_address, topic), "string")("body").alias("body")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")
    try:
        if kind == "batch":
            rows = spark.read.parquet(str(tmp_path / "rows")).select(failing)
            rows.write.format("nsq").options(**options).mode("append").save()
            assert not list((tmp_path / "markers").iterdir())
        else:
            rows = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "rows")).select(failing)
            writer = rows.writeStream.format("nsq").options(**options)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.processAllAvailable()
            query.stop()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found: list[int] = []
    with Reader(topic, "check", lambda m: found.append(int(m.body.split()[0])), nsqd_tcp_addresses=nsqd.tcp_address):
        wait_for(lambda: len(found) >= nsqd.stats(topic)["message_count"], 120.0)
    assert sorted(set(found)) == list(range(ROWS))
    again = len(found) - ROWS
    assert again <= 1000 if markers else again >= 9000
