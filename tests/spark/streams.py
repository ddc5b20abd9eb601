"""Publish to and read from streams of a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnsq_lite import Writer
from tests.programs import wait_for
from tests.servers import ServerHandle


class Feed:
    """A topic with a channel, and the options to read it."""

    def __init__(self, server: ServerHandle, topic: str, directory: Path) -> None:
        self.server, self.topic, self.directory = server, topic, directory
        server.http("POST", f"/topic/create?topic={topic}")
        server.http("POST", f"/channel/create?topic={topic}&channel=c")

    def options(self, **more: str) -> dict[str, str]:
        base = {"topic": self.topic, "channel": "c", "nsqdTCPAddresses": self.server.tcp_address}
        return {**base, "recording": str(self.directory / "spool"), "idleTimeoutMs": "500", **more}

    def publish(self, first: int, count: int) -> None:
        with Writer(self.server.tcp_address) as writer:
            for at in range(first, first + count, 500):
                writer.multipublish(self.topic, [b"%d" % n for n in range(at, min(at + 500, first + count))])

    def channel(self) -> dict[str, Any]:
        return self.server.stats(self.topic, "c")


class Sink:
    """foreachBatch that notes the rows of each batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.batches[batch_id] = sorted(int(row.body) for row in frame.select("body").collect())

    def rows(self) -> list[int]:
        return sorted(row for rows in list(self.batches.values()) for row in rows)  # a thread of Spark adds to them


def stream(spark: Any, feed: Feed, sink: Any, *, now: bool = False, source: str = "nsq", **more: str) -> Any:
    """Start a query.  One whose Python process did not connect within Spark's 10 s has done nothing: start it again."""
    when = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    for _ in range(5):
        frame = spark.readStream.format(source).options(**feed.options(**more)).load()
        writer = frame.writeStream.foreachBatch(sink).trigger(**when)
        query = writer.option("checkpointLocation", str(feed.directory / "checkpoint")).start()
        until(lambda query=query: query.lastProgress is not None or not query.isActive)
        if "failed to connect back" not in str(query.exception()):
            break
    return query


def until(what: Callable[[], bool]) -> None:
    """Wait until *what* is true: a query starts Spark's workers, which takes minutes on a busy machine."""
    wait_for(what, 240.0)
