"""The source in a real Spark session: its promises and Spark's traps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording.recording import Recording
from tests.recording.fakes import FakeMessage
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.streams import Feed, Sink, stream, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local[2]")


@pytest.fixture
def feed(nsqd: ServerHandle, topic: str, tmp_path: Path) -> Feed:
    return Feed(nsqd, topic, tmp_path)


@pytest.mark.short
@pytest.mark.rule("PIPE-1")
def test_a_stream_has_every_message_and_a_restart_goes_on(spark: Any, feed: Feed) -> None:
    sink = Sink()
    feed.publish(0, 1000)
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) == 1000 or not query.isActive)
    feed.publish(1000, 500)
    until(lambda: len(sink.rows()) == 1500 or not query.isActive)
    query.stop()
    until(lambda: feed.channel()["clients"] == [])
    assert feed.channel()["in_flight_count"] == 0, "an orderly stop leaves nothing in flight"
    feed.publish(1500, 100)
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) >= 1600 or not query.isActive)
    query.stop()
    assert sink.rows() == list(range(1600))
    assert feed.channel()["depth"] == 0


def test_rate_limits_are_kept(spark: Any, feed: Feed) -> None:
    feed.publish(0, 1000)
    sink = Sink()
    query = stream(spark, feed, sink, maxOffsetsPerTrigger="300", minPartitions="2")
    until(lambda: len(sink.rows()) >= 1000 or not query.isActive)
    query.stop()
    assert sink.rows() == list(range(1000))
    assert max(len(rows) for rows in sink.batches.values()) <= 300


def test_available_now_ends_and_the_next_run_goes_on(spark: Any, feed: Feed) -> None:
    sink = Sink()
    for run in range(2):
        feed.publish(run * 100, 100)
        query = stream(spark, feed, sink, now=True)
        assert query.awaitTermination(240)
        assert sink.rows() == list(range((run + 1) * 100))
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) >= 200 or not query.isActive)
    query.stop()
    assert sink.rows() == list(range(200))


def test_one_frame_used_twice_has_one_receiver(spark: Any, feed: Feed) -> None:
    feed.publish(0, 200)
    sink = Sink()
    frame = spark.readStream.format("nsq").options(**feed.options()).load()
    query = (
        frame.union(frame)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(feed.directory / "checkpoint"))
        .start()
    )
    until(lambda: len(sink.rows()) >= 400 or not query.isActive)
    clients = len(feed.channel()["clients"])
    query.stop()
    assert sink.rows() == sorted([*range(200), *range(200)])
    assert clients == 1


def test_a_second_query_on_the_spool_fails_with_the_reason(spark: Any, feed: Feed) -> None:
    feed.publish(0, 10)
    sink = Sink()
    first = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) == 10)
    frame = spark.readStream.format("nsq").options(**feed.options()).load()
    second = frame.writeStream.foreachBatch(Sink()).option("checkpointLocation", str(feed.directory / "second")).start()
    with pytest.raises(Exception, match="written by another process"):
        second.awaitTermination(240)
    assert first.isActive
    first.stop()


def test_a_plan_that_reads_a_frame_twice_fails_with_an_error_that_names_foreach_batch(spark: Any, feed: Feed) -> None:
    frame = spark.readStream.format("nsq").options(**feed.options()).load()
    joined = frame.alias("a").join(frame.alias("b"), "id").select("a.id")
    query = joined.writeStream.foreachBatch(Sink()).option("checkpointLocation", str(feed.directory / "c")).start()
    with pytest.raises(Exception, match="use foreachBatch"):
        query.awaitTermination(240)


def test_a_lost_spool_ends_the_query_with_the_reason(spark: Any, feed: Feed) -> None:
    feed.publish(0, 10)
    sink = Sink()
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) == 10)
    query.stop()
    (feed.directory / "spool").rename(feed.directory / "lost")
    feed.publish(10, 10)
    with pytest.raises(Exception, match=r"was lost or replaced.*failOnDataLoss"):
        stream(spark, feed, Sink()).awaitTermination(240)


def test_nsqd_may_go_away_and_come_back(spark: Any, feed: Feed) -> None:
    feed.publish(0, 10)
    sink = Sink()
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) == 10)
    feed.server.stop()
    time.sleep(1.0)
    assert query.isActive
    feed.server.restart()
    feed.publish(10, 10)
    until(lambda: len(set(sink.rows())) == 20 or not query.isActive)
    query.stop()
    assert sorted(set(sink.rows())) == list(range(20))


def test_mistakes_show_at_load_and_secrets_nowhere(spark: Any, feed: Feed) -> None:
    with pytest.raises(Exception, match="did you mean recording"):
        spark.readStream.format("nsq").options(**feed.options(recordin="x")).load()
    with pytest.raises(Exception, match=r"starts at its channel.s position"):
        spark.readStream.format("nsq").options(**feed.options(startingOffsets="latest")).load()
    frame = spark.readStream.format("nsq").options(**feed.options(**{"nsq.authSecret": "hunter2"})).load()
    assert "hunter2" not in frame._jdf.queryExecution().toString()


def test_another_schema_is_refused(spark: Any, feed: Feed) -> None:
    frame = spark.readStream.format("nsq").schema("body STRING").options(**feed.options()).load()
    query = frame.writeStream.foreachBatch(Sink()).option("checkpointLocation", str(feed.directory / "c")).start()
    with pytest.raises(Exception, match="the source always has the columns"):
        query.awaitTermination(240)


def test_a_batch_read_is_refused_with_what_to_use_and_takes_nothing(spark: Any, feed: Feed) -> None:
    feed.publish(0, 30)
    frame = spark.read.format("nsq").options(**feed.options()).load()
    with pytest.raises(Exception, match="availableNow=True"):
        frame.limit(10).collect()
    assert feed.channel()["depth"] == 30


def test_sql_reads_a_view_and_a_table_is_refused(spark: Any, feed: Feed) -> None:
    feed.publish(0, 10)
    given = feed.options(**{"nsq.clientId": "table"})
    source = ", ".join(f"`{key}` '{value}'" for key, value in given.items())
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE nsq_clicks USING nsq OPTIONS ({source})")
    spark.readStream.format("nsq").options(**given).load().createOrReplaceTempView("nsq_clicks")
    sink = Sink()
    chosen = spark.sql("SELECT * FROM nsq_clicks WHERE attempts = 1 AND int(string(body)) < 3")
    query = chosen.writeStream.foreachBatch(sink).option("checkpointLocation", str(feed.directory / "c")).start()
    try:
        until(lambda: len(sink.rows()) == 3 or not query.isActive)
    finally:
        query.stop()
        spark.catalog.dropTempView("nsq_clicks")
    assert sink.rows() == [0, 1, 2]


def test_columns_are_what_the_docs_say(spark: Any, feed: Feed) -> None:
    feed.publish(7, 1)
    found: list[Any] = []
    frame = spark.readStream.format("nsq").options(**feed.options()).load()
    schema = json.loads(frame.schema.json())["fields"]
    assert [(field["name"], field["type"]) for field in schema] == [
        ("topic", "string"),
        ("channel", "string"),
        ("nsqd", "string"),
        ("id", "string"),
        ("timestamp", "timestamp"),
        ("attempts", "integer"),
        ("body", "binary"),
    ]
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(feed.directory / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    (row,) = found
    assert (row.topic, row.channel, row.nsqd, row.attempts) == (feed.topic, "c", feed.server.tcp_address, 1)
    assert (len(row.id), bytes(row.body)) == (16, b"7")
    assert abs(row.timestamp.timestamp() - time.time()) < 60


@pytest.mark.rule("PIPE-3")
def test_two_queries_and_a_batch_read_one_recording_each_row_once(spark: Any, feed: Feed) -> None:
    recording = Recording(str(feed.directory / "recorded"))
    recording.create(feed.topic, "c")
    writers = [recording.take(), recording.take()]

    def record(first: int, count: int) -> None:
        for number, writer in enumerate(writers):
            chosen = [FakeMessage(n, b"%d" % n) for n in range(first, first + count) if n % 2 == number]
            writer.append([(-1, to_batch(chosen))])

    record(0, 100)
    sinks, queries = [Sink(), Sink()], []
    options = {"recording": recording.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}
    for number, sink in enumerate(sinks):
        writer = spark.readStream.format("nsq").options(**options).load().writeStream.foreachBatch(sink)
        queries.append(writer.option("checkpointLocation", str(feed.directory / f"checkpoint-{number}")).start())
        until(lambda sink=sink, query=queries[-1]: len(sink.rows()) > 0 or not query.isActive)
    record(100, 100)
    until(lambda: all(len(sink.rows()) >= 200 for sink in sinks) or not all(q.isActive for q in queries))
    for query in queries:
        query.stop()
    batch = spark.read.format("nsq").option("recording", recording.url).load()
    assert batch.count() == 200
    assert sorted(int(row[0]) for row in batch.selectExpr("string(body)").collect()) == list(range(200))
    for sink, query in zip(sinks, queries, strict=True):
        assert sink.rows() == list(range(200)), query.exception()
        assert max(len(rows) for rows in sink.batches.values()) <= 70
    for writer in writers:
        writer.close()
