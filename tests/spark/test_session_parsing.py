"""JSON bodies as columns, dead letters in a topic, and windows with a watermark, in a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import OptionError
from gnsq_lite.spark import parse_json, with_dead_letters
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.test_session_source import Feed, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SCHEMA = "user STRING, clicks INT"


def test_what_does_not_parse_goes_to_a_topic_and_the_rest_on(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    spark = spark_session("local[2]")
    feed = Feed(nsqd, topic, tmp_path)
    bad = [b"{", b"\xff\xfe", b'{"user": "x", "clicks": "many"}']
    good = [b'{"user": "u%d", "clicks": %d}' % (n % 3, n) for n in range(30)] + [b"{}"]
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish(topic, [*good, *bad])
    kept: dict[int, list[Any]] = {}

    def store(rows: Any, batch_id: int) -> None:
        assert rows.columns[-2:] == ["user", "clicks"]
        kept[batch_id] = [(row.user, row.clicks) for row in rows.collect()]

    sink = {"topic": f"{topic}-dead", "nsqdTCPAddresses": nsqd.tcp_address}
    parsed = parse_json(spark.readStream.format("nsq").options(**feed.options()).load(), SCHEMA)
    with pytest.raises(OptionError, match="user already"):
        parse_json(parsed, "user STRING")
    with pytest.raises(OptionError, match="dead letters"):
        with_dead_letters(store, {"nsqdTCPAddresses": "n"})
    writing = parsed.writeStream.foreachBatch(with_dead_letters(store, sink)).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination(240)
    assert query.exception() is None
    rows = [row for rows in kept.values() for row in rows]
    assert sorted(rows, key=str) == sorted([*((f"u{n % 3}", n) for n in range(30)), (None, None)], key=str)
    dead: list[bytes] = []
    with Reader(f"{topic}-dead", "look", lambda m: dead.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address):
        until(lambda: len(dead) >= len(bad))
    assert sorted(dead) == sorted(bad)


def test_windows_close_behind_the_watermark(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    spark = spark_session("local[2]")
    feed = Feed(nsqd, topic, tmp_path)
    feed.publish(0, 100)
    frame = spark.readStream.format("nsq").options(**feed.options()).load()
    windows = frame.withWatermark("timestamp", "1 second").selectExpr("window(timestamp, '1 second') AS w")
    totals: dict[Any, int] = {}

    def note(batch: Any, batch_id: int) -> None:
        for row in batch.collect():
            assert row.w.start not in totals, "a window is closed once"
            totals[row.w.start] = row["count"]

    writing = windows.groupBy("w").count().writeStream.outputMode("append").foreachBatch(note)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    published = 100

    def closed() -> bool:
        nonlocal published
        feed.publish(published, 10)  # later messages move the watermark
        published += 10
        return sum(totals.values()) >= 100 or not query.isActive

    until(closed)
    query.stop()
    assert sum(totals.values()) >= 100, query.exception()
