"""Cases that run in a Spark session with ``local[2]``."""

from __future__ import annotations

import statistics
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.spark import cpu
from benchmarks.spark.cases import options, prepare
from gnsq_lite import Writer

#: Setting of a session for checkpoints on a local disk.  Hadoop's default writes a .crc file beside each file.
FILE_SYSTEM = "fs.AbstractFileSystem.file.impl"
RAW, WITH_CRC = "org.apache.hadoop.fs.local.RawLocalFs", "org.apache.hadoop.fs.local.LocalFs"


def run_query(frame: Any, directory: Path, rows: int, sink: str = "noop", **more: str) -> dict[str, float]:
    """Run a streaming query until it has processed *rows* rows.

    Time is measured from the query's first trigger, in which a receiver connects, to the end of the last batch.  CPU
    seconds of nsqd, the source's process, the JVM and its workers are measured from before the start to that end.
    """
    before = cpu.seconds()
    checkpoint = str(directory / "checkpoint")
    query = frame.writeStream.format(sink).options(**more).option("checkpointLocation", checkpoint).start()
    try:
        while query.isActive:
            reports = query.recentProgress
            if sum(report["numInputRows"] for report in reports) >= rows:
                return {"per_second": rows / span(reports), **per_row(cpu.since(before), rows)}
            time.sleep(0.05)
        raise AssertionError(query.exception())
    finally:
        query.stop()


def span(reports: list[Any]) -> float:
    """Return the seconds from the first trigger's start to the end of the last batch with rows."""
    last = [report for report in reports if report["numInputRows"]][-1]
    return moment(last) - moment(reports[0]) + last["durationMs"]["triggerExecution"] / 1000


def moment(report: Any) -> float:
    """Return the time at which a trigger began, in seconds since 1970."""
    return datetime.fromisoformat(report["timestamp"].replace("Z", "+00:00")).timestamp()


def per_row(spent: dict[str, float], rows: int) -> dict[str, float]:
    """Return the CPU microseconds per row of each kind of process, and of all processes."""
    kinds = {f"cpu_us_{kind}": spent.get(kind, 0.0) / rows * 1e6 for kind in ("nsqd", "source", "jvm", "workers")}
    return {**kinds, "cpu_us": sum(kinds.values())}


def through_spark(
    spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int, **more: str
) -> dict[str, float]:
    """Measure a topic to Spark's noop sink, including receiving."""
    prepare(server, topic, messages, size)
    frame = spark.readStream.format("nsq").options(**options(server, topic, directory / "spool", **more)).load()
    result = run_query(frame, directory, messages)
    server.http("POST", f"/topic/delete?topic={topic}")
    return result


def to_parquet(spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int) -> dict[str, float]:
    """Measure a topic to Parquet files, including receiving, and count the stored rows."""
    prepare(server, topic, messages, size)
    frame = spark.readStream.format("nsq").options(**options(server, topic, directory / "spool")).load()
    stored = str(directory / "stored")
    result = run_query(frame, directory, messages, "parquet", path=stored)
    assert spark.read.parquet(stored).count() == messages
    server.http("POST", f"/topic/delete?topic={topic}")
    return result


def rate_source(spark: Any, directory: Path, rows: int, sink: str = "noop", **more: str) -> dict[str, float]:
    """Measure Spark's rate source, which creates rows in the JVM, to show the cost of a query without reading."""
    directory.mkdir(parents=True)
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows // 4).load()
    return run_query(frame, directory, rows // 4 * 4, sink, **more)


def rate_to_parquet(spark: Any, directory: Path, rows: int) -> dict[str, float]:
    """Measure the rate source, whose rows have two numbers, to Parquet files."""
    return rate_source(spark, directory, rows, "parquet", path=str(directory / "stored"))


def files_to_parquet(spark: Any, directory: Path, rows: int, size: int, files: int = 8) -> dict[str, float]:
    """Measure Spark's file source and sink with the columns of format("nsq"), to show Spark's share of the cost."""
    source = directory / "rows"
    columns = [
        "'t' AS topic",
        "'c' AS channel",
        "'127.0.0.1:4150' AS nsqd",
        "lpad(hex(id), 16, '0') AS id",
        "timestamp_micros(1700000000000000 + id) AS timestamp",
        "1 AS attempts",
        f"cast(lpad(id, {size}, 'x') AS binary) AS body",
    ]
    spark.range(rows, numPartitions=files).selectExpr(*columns).write.parquet(str(source))
    stream = spark.readStream.schema(spark.read.parquet(str(source)).schema).parquet(str(source))
    return run_query(stream, directory, rows, "parquet", path=str(directory / "stored"))


def lines(directory: Path, messages: int, size: int) -> Path:
    """Write *messages* lines to text files of 50,000 lines, and return the directory."""
    source = directory / "lines"
    source.mkdir(parents=True)
    for number in range(0, messages, 50_000):
        text = b"".join(
            b"%010d" % n + b"x" * (size - 11) + b"\n" for n in range(number, min(number + 50_000, messages))
        )
        (source / f"{number:012d}.txt").write_bytes(text)
    return source


def text_files(spark: Any, directory: Path, messages: int, size: int) -> dict[str, float]:
    """Measure Spark's file source with lines of the same size, for comparison."""
    frame = spark.readStream.format("text").load(str(lines(directory, messages, size)))
    return run_query(frame, directory, messages)


def streaming_sink(
    spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int, files: int = 8
) -> dict[str, float]:
    """Measure the streaming sink: Parquet files to a topic."""
    source = bodies(spark, directory, messages, size, files)
    server.http("POST", f"/topic/create?topic={topic}")
    stream = spark.readStream.schema("body BINARY").parquet(source)
    result = run_query(stream, directory, messages, "nsq", nsqdTCPAddresses=server.tcp_address, topic=topic)
    assert server.stats(topic)["message_count"] == messages
    server.http("POST", f"/topic/delete?topic={topic}")
    return result


def bodies(spark: Any, directory: Path, messages: int, size: int, files: int) -> str:
    """Write *messages* bodies to Parquet files, and return the directory."""
    source = str(directory / "rows")
    frame = spark.range(messages, numPartitions=files).selectExpr(f"cast(lpad(id, {size}, 'x') AS binary) AS body")
    frame.write.parquet(source)
    return source


def batch_sink(
    spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int, files: int = 8
) -> dict[str, float]:
    """Measure the batch sink: the same files to a topic, in one batch."""
    source = bodies(spark, directory, messages, size, files)
    server.http("POST", f"/topic/create?topic={topic}")
    before, begun = cpu.seconds(), time.perf_counter()
    sink = {"nsqdTCPAddresses": server.tcp_address, "topic": topic}
    spark.read.schema("body BINARY").parquet(source).write.format("nsq").options(**sink).mode("append").save()
    result = {"per_second": messages / (time.perf_counter() - begun), **per_row(cpu.since(before), messages)}
    assert server.stats(topic)["message_count"] == messages
    server.http("POST", f"/topic/delete?topic={topic}")
    return result


def latency(
    spark: Any, server: Any, topic: str, directory: Path, rate: int, seconds: int, file_system: str
) -> dict[str, float]:
    """Measure the latency from publish to foreachBatch at *rate* messages per second: p50 and p99 in milliseconds."""
    prepare(server, topic, 1, 20)
    spark.conf.set(FILE_SYSTEM, file_system)
    seen: list[float] = []

    def note(frame: Any, batch_id: int) -> None:
        bodies = [bytes(row.body) for row in frame.select("body").collect()]
        now = time.time()
        seen.extend((now - float(body)) * 1000 for body in bodies if not body.endswith(b"x"))

    frame = spark.readStream.format("nsq").options(**options(server, topic, directory / "spool")).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        while not any(report["numInputRows"] for report in query.recentProgress):
            assert query.isActive, query.exception()
            time.sleep(0.1)
        sent = publish_steadily(server, topic, rate, seconds)
        deadline = time.monotonic() + 60
        while len(seen) < sent and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
        spark.conf.unset(FILE_SYSTEM)
    assert len(seen) == sent
    steady = sorted(seen[len(seen) // 5 :])
    return {"p50_ms": statistics.median(steady), "p99_ms": steady[int(len(steady) * 0.99)]}


def publish_steadily(server: Any, topic: str, rate: int, seconds: int) -> int:
    """Publish the present time *rate* times a second, and return the number of publishes."""
    sent = 0
    with Writer(server.tcp_address) as writer:
        begun = time.time()
        while sent < rate * seconds:
            due = int((time.time() - begun) * rate)
            if due > sent:
                writer.multipublish(topic, [b"%.6f" % time.time()] * (due - sent))
                sent = due
            time.sleep(0.002)
    return sent
