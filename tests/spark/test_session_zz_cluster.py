"""On executors that are processes of their own; last by name, for it needs a session of another master."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local-cluster[2,1,1024]")


@pytest.mark.rule("PIPE-5")
@pytest.mark.parametrize("how", [{"receiver": "executors"}, {}, {"spoolTransfer": "inline"}])
def test_executors_get_every_row_once_over_a_restart(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path, how: dict[str, str]
) -> None:
    source = {"topic": topic, "channel": "c", "nsqdTCPAddresses": nsqd.tcp_address, "spoolDir": str(tmp_path / "spool")}
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
        frame = spark.readStream.format("nsq").options(**source, **how).load()
        writer_of = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer_of.start()
        deadline = time.monotonic() + 120
        while sum(map(len, batches.values())) < published and time.monotonic() < deadline and query.isActive:
            time.sleep(0.1)
        query.stop()
    assert sorted(row for rows in batches.values() for row in rows) == list(range(published))
    assert changed == []
    deadline = time.monotonic() + 20
    while nsqd.stats(topic, "c")["in_flight_count"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert nsqd.stats(topic, "c")["in_flight_count"] == 0
