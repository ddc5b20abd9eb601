"""The sink in a real Spark session."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.cli.demo import records, standard_library
from gnsq_lite.spark.compat import supports_available_now
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local[2]")


def received(server: ServerHandle, topic: str, count: int, settle: float = 0.3) -> list[bytes]:
    """Return what is in the topic, *count* messages and whatever comes right after them."""
    found: list[bytes] = []
    lock = threading.Lock()

    def take(message: Any) -> None:
        with lock:
            found.append(message.body)

    with Reader(topic, "check", take, nsqd_tcp_addresses=server.tcp_address, max_in_flight=500):
        wait_for(lambda: len(found) >= count, 240.0)
        time.sleep(settle)
    return found


def write(frame: Any, server: ServerHandle, topic: str = "", mode: str = "append", **more: str) -> None:
    options = {"nsqdTCPAddresses": server.tcp_address, **({"topic": topic} if topic else {}), **more}
    frame.write.format("nsq").options(**options).mode(mode).save()


@pytest.mark.rule("PIPE-1")
def test_a_frame_is_published_whole(spark: Any, nsqd: ServerHandle, topic: str) -> None:
    write(spark.range(5000, numPartitions=3).selectExpr("string(id) AS body"), nsqd, topic, mpubSize="300")
    assert sorted(map(int, received(nsqd, topic, 5000))) == list(range(5000))


def test_rows_name_their_topics_and_delays(spark: Any, nsqd: ServerHandle, topic: str) -> None:
    frame = spark.range(100).selectExpr(
        "string(id) AS body", f"concat('{topic}-', id % 2) AS topic", "if(id < 4, 0.3D, 0.0D) AS defer"
    )
    write(frame, nsqd)
    for parity in range(2):
        assert sorted(map(int, received(nsqd, f"{topic}-{parity}", 50))) == list(range(parity, 100, 2))


@pytest.mark.parametrize(
    ("sql", "mode", "why"),
    [
        ("string(id) AS body", "overwrite", "cannot be overwritten"),
        ("string(id) AS body", "errorifexists", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("string(id) AS value", "append", "need a column 'body'"),
        ("if(id = 3, NULL, 'x') AS body", "append", "null or empty body"),
        ("repeat('x', 2000000) AS body", "append", "2000000 bytes"),
    ],
)
def test_what_nsqd_would_refuse_is_refused_before(
    spark: Any, nsqd: ServerHandle, topic: str, sql: str, mode: str, why: str
) -> None:
    with pytest.raises(Exception, match=why):
        write(spark.range(4, numPartitions=1).selectExpr(sql), nsqd, topic, mode)
    assert nsqd.stats(topic).get("message_count", 0) == 0


def test_a_stream_is_published_and_its_markers_are_cleaned_up(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    source = {
        "topic": topic,
        "channel": "c",
        "nsqdTCPAddresses": nsqd.tcp_address,
        "recording": str(tmp_path / "spool"),
    }
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish(topic, [b"%d" % n for n in range(300)])
    frame = spark.readStream.format("nsq").options(**source).load()
    query = (
        frame.selectExpr("concat('<', string(body), '>') AS body")
        .writeStream.format("nsq")
        .options(nsqdTCPAddresses=nsqd.tcp_address, topic=topic + "-out", markerDir=str(tmp_path / "markers"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert sorted(received(nsqd, topic + "-out", 300)) == sorted(b"<%d>" % n for n in range(300))
        with Writer(nsqd.tcp_address) as writer:
            writer.publish(topic, b"more")
        assert received(nsqd, topic + "-out", 1) == [b"<more>"]
    finally:
        query.stop()
    assert len(list((tmp_path / "markers").glob("*"))) <= 2


def test_two_writes_of_one_foreach_batch_are_published_whole_whatever_markers_there_are(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    def both(frame: Any, batch_id: int) -> None:
        for half in range(2):
            rows = frame.where(f"value div 2 % 2 = {half}").selectExpr("string(value) AS body")
            write(rows, nsqd, f"{topic}-{half}", markerDir=str(tmp_path / "markers"))

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    query = stream.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for half in range(2):
            wanted = [n for n in range(100) if n // 2 % 2 == half]
            assert sorted(map(int, received(nsqd, f"{topic}-{half}", 50)))[:50] == wanted
    finally:
        query.stop()


@pytest.mark.rule("PIPE-2")
def test_a_corpus_written_to_files_and_published_from_them_is_the_same(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    lines = [record for _, record in islice(records(standard_library(), None), 20_000)]
    source = {
        "topic": topic,
        "channel": "c",
        "nsqdTCPAddresses": nsqd.tcp_address,
        "recording": str(tmp_path / "spool"),
    }
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=c")
    with Writer(nsqd.tcp_address) as writer:
        for at in range(0, len(lines), 500):
            writer.multipublish(topic, lines[at : at + 500])
    limits = {"maxOffsetsPerTrigger": "4000"} if supports_available_now() else {}  # or one batch is all of a run
    frame = spark.readStream.format("nsq").options(**source, **limits, idleTimeoutMs="500").load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "files"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    write(spark.read.parquet(str(tmp_path / "files")).select("body"), nsqd, topic + "-again")
    assert Counter(received(nsqd, topic + "-again", len(lines))) == Counter(lines)
