"""Windows by the time of publishing with a watermark, as docs/spark.rst has them: a restart, and a row that is late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Writer
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.streams import Feed, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


class Windows:
    """A query that counts messages by window and kind, the first letter of a body, and keeps what it has written."""

    def __init__(self, nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
        self.feed = Feed(nsqd, topic, tmp_path)
        self.written: dict[tuple[Any, str], int] = {}
        self.batches: set[int] = set()
        self.query: Any = None

    def start(self) -> None:
        frame = spark_session("local[2]").readStream.format("nsq").options(**self.feed.options()).load()
        by = ["window(timestamp, '1 second') AS w", "left(string(body), 1) AS kind"]
        counts = frame.withWatermark("timestamp", "1 second").selectExpr(*by).groupBy("w", "kind").count()
        checkpoint = str(self.feed.directory / "checkpoint")
        writing = counts.writeStream.outputMode("append").foreachBatch(self.note)
        self.query = writing.option("checkpointLocation", checkpoint).start()

    def note(self, batch: Any, batch_id: int) -> None:
        rows = batch.collect()
        if batch_id in self.batches:
            return  # it runs again after a restart: a sink that is idempotent by batch id
        self.batches.add(batch_id)
        for row in rows:
            assert (row.w.start, row.kind) not in self.written, "a window is written once"
            self.written[row.w.start, row.kind] = row["count"]

    def total(self, kind: str) -> int:
        return sum(count for (_, one), count in self.written.items() if one == kind)

    def publish(self, kind: str, count: int) -> None:
        with Writer(self.feed.server.tcp_address) as writer:
            writer.multipublish(self.feed.topic, [kind.encode()] * count)

    def dropped(self) -> int:
        reports = self.query.recentProgress
        return sum(one["numRowsDroppedByWatermark"] for report in reports for one in report["stateOperators"])

    def until(self, what: Callable[[], bool]) -> None:
        """Publish, which moves the watermark on, until *what* is so."""

        def is_so() -> bool:
            assert self.query.isActive, self.query.exception()
            self.publish("m", 1)
            return what()

        until(is_so)


def test_windows_are_whole_and_written_once_over_a_restart(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    windows = Windows(nsqd, topic, tmp_path)
    windows.publish("a", 100)
    windows.start()
    windows.until(lambda: windows.total("a") == 100)
    windows.publish("b", 50)
    until(lambda: windows.feed.channel()["depth"] == 0)
    windows.query.stop()
    windows.publish("c", 30)
    windows.start()
    windows.until(lambda: (windows.total("b"), windows.total("c")) == (50, 30))
    windows.query.stop()
    assert windows.total("a") == 100


def test_a_row_that_comes_after_its_window_was_written_is_dropped_and_counted(
    nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    windows = Windows(nsqd, topic, tmp_path)
    held: list[Message] = []

    def hold(message: Message) -> None:
        message.enable_async()
        held.append(message)

    windows.publish("l", 1)
    with Reader(topic, "c", hold, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=1, msg_timeout=400.0) as reader:
        until(lambda: len(held) == 1)
        reader.pause()  # all others are the query's
        windows.publish("a", 20)
        windows.start()
        windows.until(lambda: windows.total("a") == 20)
        held[0].requeue(0.0, backoff=False)
        windows.until(lambda: windows.dropped() == 1)
        windows.query.stop()
    assert windows.total("l") == 0
