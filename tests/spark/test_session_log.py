"""``format("nsq_log")`` in a real Spark session, on an embedded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.spark.compat import supports_available_now
from tests.spark.conftest import spark_session
from tests.spark.streams import Sink, until
from tests.youzan_broker import YouzanBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def publish(broker: YouzanBroker, partition: int, first: int, count: int) -> None:
    with Writer(lookupd_http_addresses=broker.lookupd_http_address, dialect="youzan") as writer:
        writer.multipublish("clicks", [b"%d" % n for n in range(first, first + count)], partition=partition)


@pytest.mark.short
@pytest.mark.rule("PIPE-1")
@pytest.mark.rule("PIPE-3")
def test_a_log_is_read_from_its_beginning_twice_and_on_from_a_checkpoint(tmp_path: Path) -> None:
    spark = spark_session("local[2]")
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("clicks", 2)
        publish(broker, 0, 0, 600)
        publish(broker, 1, 600, 400)
        where = {"topic": "clicks", "lookupdHTTPAddresses": broker.lookupd_http_address}
        batch = spark.read.format("nsq_log").options(**where).load()
        assert (batch.count(), batch.selectExpr("count(DISTINCT string(body))").collect()[0][0]) == (1000, 1000)
        sink = Sink()
        limits = {"maxOffsetsPerTrigger": "250"} if supports_available_now() else {}  # refused
        query = started(spark, sink, tmp_path, where, {"availableNow": True}, **limits)
        query.awaitTermination(240)
        assert query.exception() is None
        assert sink.rows() == list(range(1000))
        assert 245 <= max(map(len, sink.batches.values())) <= (250 if limits else 1000)
        progress = query.lastProgress["sources"][0]
        assert progress["latestOffset"] == progress["endOffset"]
        publish(broker, 1, 1000, 50)
        query = started(spark, sink, tmp_path, where, {"processingTime": "0 seconds"})
        until(lambda: len(sink.rows()) >= 1050 or not query.isActive)
        query.stop()
        assert sink.rows() == list(range(1050))


def started(spark: Any, sink: Sink, directory: Path, where: dict[str, str], when: dict[str, Any], **more: str) -> Any:
    frame = spark.readStream.format("nsq_log").options(**where, startingOffsets="earliest", **more).load()
    writer = frame.writeStream.foreachBatch(sink).trigger(**when)
    return writer.option("checkpointLocation", str(directory / "checkpoint")).start()
