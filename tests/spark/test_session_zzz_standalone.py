"""Executors of a standalone cluster that read a directory, or an object store, and are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session, stop_spark
from tests.spark.gateway import PROGRAM, Gateway
from tests.spark.standalone import Standalone
from tests.spark.test_session_source import Sink, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

MESSAGES, KILLS = 20_000, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    stop_spark()
    cluster = Standalone(tmp_path_factory.mktemp("cluster") / "standalone", 2)
    yield cluster
    stop_spark()
    cluster.stop()


@pytest.fixture(params=["directory", *(["objects"] if PROGRAM else [])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of a spool."""
    if request.param == "directory":
        yield {"recording": str(tmp_path / "spool")}
        return
    gateway = Gateway(tmp_path / "gateway")
    yield gateway.options("spool")
    gateway.kill()


def published(address: str, topic: str) -> threading.Thread:
    """Publish in a thread, slowly enough for kills to find messages on their way."""

    def publish() -> None:
        with Writer(address) as writer:
            for at in range(0, MESSAGES, 200):
                writer.multipublish(topic, [b"%d" % n for n in range(at, at + 200)])
                time.sleep(0.2)

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


@pytest.mark.rule("PIPE-2")
@pytest.mark.rule("PIPE-5")
def test_executors_killed_lose_nothing(
    cluster: Standalone, nsqd: ServerHandle, topic: str, tmp_path: Path, place: dict[str, str]
) -> None:
    spark = spark_session(cluster.url)
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=c")
    given: dict[str, Any] = {"topic": topic, "channel": "c", "nsqdTCPAddresses": nsqd.tcp_address, **place}
    frame = spark.readStream.format("nsq").options(**given)
    sink, chance = Sink(), random.Random(5)
    writer = frame.option("nsq.msgTimeoutMs", "3000").load().writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    feeder = published(nsqd.tcp_address, topic)
    try:
        for number in range(KILLS):
            until(lambda n=number: len(sink.rows()) >= (n + 1) * MESSAGES // 10 or not query.isActive)
            time.sleep(chance.random())
            until(lambda: bool(cluster.executors()))
            os.kill(chance.choice(cluster.executors()), signal.SIGKILL)
        until(lambda: len(set(sink.rows())) >= MESSAGES or not query.isActive)
    finally:
        feeder.join()
        query.stop()
    rows = sink.rows()
    assert rows == list(range(MESSAGES)), query.exception()
