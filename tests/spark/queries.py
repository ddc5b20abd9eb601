"""Streaming queries without Spark: the calls that Spark makes, in its order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.spark.stream import NsqStreamReader
from tests import servers
from tests.servers import RealNsqd, ServerHandle, embedded_nsqd


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerHandle]:
    """A real nsqd whose queue is on the disk and is synced late; the embedded one where there is none."""
    if servers.nsqd_program() is None:
        with embedded_nsqd(msg_timeout=3.0) as embedded:
            yield embedded
        return
    late = {"mem_queue_size": 0, "sync_every": 100_000, "sync_timeout": "60s", "msg_timeout": "3s"}
    server = RealNsqd(tmp_path, **late)
    yield server
    server.stop()


def publish(server: ServerHandle, count: int) -> None:
    server.prepare("t", "c")
    with Writer(server.tcp_address) as writer:
        for at in range(0, count, 500):
            writer.multipublish("t", [b"%d" % n for n in range(at, at + 500)])


class Query:
    """Reads batch after batch and commits each with the next, as Spark does."""

    def __init__(self, reader: NsqStreamReader, start: Any = None) -> None:
        self.reader = reader
        self.start = self.end = start or reader.initialOffset()
        self.rows: list[int] = []

    def run(self, done: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{len(self.rows)} rows"
            self.step()
            time.sleep(0.02)

    def step(self) -> None:
        start, self.end = self.end, self.reader.latestOffset(self.end, None)
        if self.end == start:
            return
        self.reader.commit(start)
        self.start = start
        for partition in self.reader.partitions(start, self.end):
            for batch in self.reader.read(partition):
                self.rows += [int(body) for body in batch.column("body").to_pylist()]

    @property
    def dropped(self) -> int:
        assert self.reader._embedded is not None
        return self.reader._embedded.started().dropped()


def settled(server: ServerHandle) -> Callable[[], bool]:
    """Whether nsqd has nothing left, neither queued nor in flight nor deferred."""

    def look() -> bool:
        channel = server.stats("t", "c")
        return not any(channel.get(name) for name in ("depth", "in_flight_count", "deferred_count"))

    return look
