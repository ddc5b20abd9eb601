"""The cases that run in a Spark session, local[2]."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.spark.cases import options, prepare
from gnsq_lite import Writer


def run_query(frame: Any, checkpoint: Path, rows: int, sink: str = "noop", **more: str) -> float:
    """Run a streaming query until *rows* rows have passed and return the seconds from its first rows on."""
    query = frame.writeStream.format(sink).options(**more).option("checkpointLocation", str(checkpoint)).start()
    first: float | None = None
    try:
        while query.isActive:
            done = sum(report["numInputRows"] for report in query.recentProgress)
            if done and first is None:
                report = next(r for r in query.recentProgress if r["numInputRows"])
                first = time.perf_counter() - report["durationMs"]["triggerExecution"] / 1000
            if done >= rows and first is not None:
                return time.perf_counter() - first
            time.sleep(0.02)
        raise AssertionError(query.exception())
    finally:
        query.stop()


def through_spark(
    spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int, **more: str
) -> dict[str, float]:
    """Topic -> no-op sink: rows per second, receiving included."""
    prepare(server, topic, messages, size)
    frame = spark.readStream.format("nsq").options(**options(server, topic, directory / "spool", **more)).load()
    return {"per_second": messages / run_query(frame, directory / "checkpoint", messages)}


def text_files(spark: Any, directory: Path, messages: int, size: int) -> dict[str, float]:
    """Spark's own file source over lines of the same size, for comparison: the data are on disk already."""
    source = directory / "lines"
    source.mkdir(parents=True)
    for number in range(0, messages, 50_000):
        (source / f"{number:012d}.txt").write_bytes((b"x" * (size - 1) + b"\n") * min(50_000, messages - number))
    frame = spark.readStream.format("text").load(str(source))
    return {"per_second": messages / run_query(frame, directory / "checkpoint", messages)}


def socket_lines(spark: Any, directory: Path, messages: int, size: int) -> dict[str, float]:
    """Spark's socket source, for comparison: nothing is durable there."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    line = (b"x" * (size - 1) + b"\n") * 1000

    def feed() -> None:
        peer, _ = listener.accept()
        with peer:
            for _ in range(messages // 1000):
                peer.sendall(line)
            time.sleep(600)  # the end of the socket would end the query

    threading.Thread(target=feed, daemon=True).start()
    host, port = listener.getsockname()
    frame = spark.readStream.format("socket").option("host", host).option("port", port).load()
    return {"per_second": messages / run_query(frame, directory / "checkpoint", messages)}


def streaming_sink(
    spark: Any, server: Any, topic: str, directory: Path, messages: int, size: int, tasks: int = 2
) -> dict[str, float]:
    """Parquet files -> topic, streaming: rows per second."""
    source = directory / "rows"
    frame = spark.range(messages, numPartitions=8).selectExpr(f"cast(lpad(id, {size}, 'x') AS binary) AS body")
    frame.write.parquet(str(source))
    server.http("POST", f"/topic/create?topic={topic}")
    stream = spark.readStream.schema(frame.schema).parquet(str(source))
    where = {"nsqdTCPAddresses": server.tcp_address, "topic": topic}
    seconds = run_query(stream, directory / "checkpoint", messages, "nsq", **where)
    assert server.stats(topic)["message_count"] == messages
    return {"per_second": messages / seconds}


def latency(spark: Any, server: Any, topic: str, directory: Path, rate: int, seconds: int) -> dict[str, float]:
    """Publish -> foreachBatch at *rate* messages per second: milliseconds, median and 99th percentile."""
    prepare(server, topic, 1, 20)
    seen: list[float] = []

    def note(frame: Any, batch_id: int) -> None:
        bodies = [bytes(row.body) for row in frame.select("body").collect()]
        now = time.time()
        seen.extend((now - float(body)) * 1000 for body in bodies if not body.endswith(b"x"))

    frame = spark.readStream.format("nsq").options(**options(server, topic, directory / "spool")).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(directory / "checkpoint")).start()
    time.sleep(8)
    with Writer(server.tcp_address) as writer:
        begun = time.time()
        sent = 0
        while sent < rate * seconds:
            due = int((time.time() - begun) * rate)
            if due > sent:
                writer.multipublish(topic, [b"%.6f" % time.time()] * (due - sent))
                sent = due
            time.sleep(0.002)
    time.sleep(3)
    query.stop()
    steady = sorted(seen[len(seen) // 5 :])
    return {"p50_ms": statistics.median(steady), "p99_ms": steady[int(len(steady) * 0.99)]}
