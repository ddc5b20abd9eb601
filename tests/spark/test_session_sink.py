"""The sink in a real Spark session, and the pipelines that use it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import OptionError
from gnsq_lite.spark.compat import supports_available_now
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
        deadline = time.monotonic() + 240
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(0.02)
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
    source = {"topic": topic, "channel": "c", "nsqdTCPAddresses": nsqd.tcp_address, "spoolDir": str(tmp_path / "spool")}
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


def corpus(limit: int = 20_000) -> list[bytes]:
    """Return real input: the lines of Python's own library, each with its number."""
    from itertools import islice

    from gnsq_lite.cli.demo import records, standard_library

    return [record for _, record in islice(records(standard_library(), None), limit)]


@pytest.mark.rule("PIPE-2")
def test_a_corpus_archived_and_replayed_is_the_same(spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    from gnsq_lite.spark.archive import compact
    from gnsq_lite.spark.pipelines import archive, replay

    lines = corpus()
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=archive")
    source = {
        "topic": topic,
        "channel": "archive",
        "nsqdTCPAddresses": nsqd.tcp_address,
        "spoolDir": str(tmp_path / "spool"),
        "idleTimeoutMs": "500",
        "segmentMaxRecords": "4000",  # several files of one batch
    }
    limits = {"maxOffsetsPerTrigger": "4000"} if supports_available_now() else {}  # or one batch is all of a run
    with Writer(nsqd.tcp_address) as writer:
        for at in range(0, len(lines), 500):
            writer.multipublish(topic, lines[at : at + 500])
    seen: list[int] = []
    outcome = archive(
        {**source, **limits},
        tmp_path / "archive",
        checkpoint=tmp_path / "checkpoint",
        available_now=True,
        spark=spark,
        on_progress=lambda now: seen.append(now.rows),
    )
    assert (outcome.rows, outcome.batches >= (5 if limits else 1), seen[-1]) == (len(lines), True, len(lines))
    sink = {"nsqdTCPAddresses": nsqd.tcp_address, "topic": topic + "-again"}
    assert replay(tmp_path / "archive", sink, spark=spark).rows == len(lines)
    assert Counter(received(nsqd, topic + "-again", len(lines))) == Counter(lines)

    done = compact(tmp_path / "archive", min_files=2, min_age=0.0)
    assert done.rows == len(lines)
    assert done.files_after < done.files_before
    part = {**sink, "topic": topic + "-part"}
    chosen = replay(tmp_path / "archive", part, where="startswith(string(body), '7')", rate=5000, spark=spark)
    wanted = [line for line in lines if line.startswith(b"7")]
    assert chosen.rows == len(wanted)
    assert chosen.seconds >= (len(wanted) - 1000) / 5000 * 0.8
    assert Counter(received(nsqd, topic + "-part", len(wanted))) == Counter(wanted)

    from gnsq_lite.spark.summary import cells, summarize

    windows = summarize(path=tmp_path / "archive", window="1 hour", spark=spark)
    assert sum(one.messages for one in windows) == len(lines)
    assert sum(one.bytes for one in windows) == sum(map(len, lines))
    assert all(one.topic == topic and one.longest_lag >= one.mean_lag >= 0 for one in windows)
    assert len(cells(windows)[0]) == 9


def test_a_topic_is_relayed_through_sql(spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    from gnsq_lite.spark.pipelines import relay

    source = {
        "topic": topic,
        "channel": "relay",
        "nsqdTCPAddresses": nsqd.tcp_address,
        "spoolDir": str(tmp_path / "spool"),
        "idleTimeoutMs": "500",
    }
    with pytest.raises(OptionError, match="never ends"):
        relay(source, {"nsqdTCPAddresses": "n", "topic": topic}, checkpoint=tmp_path / "c", spark=spark)
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish(topic, [b"%d" % n for n in range(100)])
    target = {"nsqdTCPAddresses": nsqd.tcp_address, "topic": topic + "-out"}
    how: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "available_now": True, "spark": spark}
    outcome = relay(source, target, select="concat('n=', string(body))", where="int(string(body)) % 2 = 0", **how)
    assert outcome.rows == 100
    assert sorted(received(nsqd, topic + "-out", 50)) == sorted(b"n=%d" % n for n in range(0, 100, 2))


def test_the_command_line_archives_and_replays(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnsq_lite.cli.app import run

    where = ["--nsqd", nsqd.tcp_address]
    archive = str(tmp_path / "archive")
    work = ["--topic", topic, "--channel", "c", "--work-dir", str(tmp_path / "work"), "-o", "idleTimeoutMs=500"]
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish(topic, [b"%d" % n for n in range(50)])
    assert run(["spark", "archive", archive, *work, *where, "--available-now"]) == 0
    assert run(["spark", "summarize", "--path", archive, "--window", "1 hour"]) == 0
    assert run(["spark", "compact", archive, "--min-age", "0"]) == 0
    assert run(["spark", "replay", archive, "--topic", topic + "-again", *where]) == 0
    shown = capsys.readouterr().out
    for text in ("archive: 50 rows", "summarize: 50 messages", "compact: 0 rows", "replay: 50 messages"):
        assert text in shown
    assert len(received(nsqd, topic + "-again", 50)) == 50
    assert run(["spark", "archive", archive, *work, *where, "-o", "topik=x"]) == 2
    assert "did you mean topic" in capsys.readouterr().err
