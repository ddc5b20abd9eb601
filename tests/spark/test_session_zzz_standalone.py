"""Executors of a standalone cluster that read a directory, or an object store, and are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.recording import Recording
from gnsq_lite.spark import record
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session, stop_spark
from tests.spark.gateway import LACKS, Gateway
from tests.spark.standalone import Standalone
from tests.spark.streams import Sink, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

MESSAGES, KILLS = 20_000, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    stop_spark()
    cluster = Standalone(tmp_path_factory.mktemp("cluster") / "standalone", 2)
    yield cluster
    stop_spark()
    cluster.stop()


@pytest.fixture(params=["directory", *([] if LACKS else ["objects"])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of a spool."""
    if request.param == "directory":
        yield {"recording": str(tmp_path / "spool")}
        return
    gateway = Gateway()
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
def test_recorders_on_executors_lose_nothing_when_an_executor_is_killed(
    cluster: Standalone, nsqd: ServerHandle, topic: str, place: dict[str, str]
) -> None:
    spark = spark_session(cluster.url)
    nsqd.prepare(topic, "c")
    url, storage = place.pop("recording"), place
    options = {"nsqdTCPAddresses": nsqd.tcp_address, "nsq.msgTimeoutMs": "3000", **storage}
    recording = Recording(url, {name.removeprefix("nsq.storage."): text for name, text in storage.items()})
    job = record(spark, topic, "c", url, recorders=2, options=options)
    until(lambda: len(nsqd.stats(topic, "c")["clients"]) == 2)
    feeder = published(nsqd.tcp_address, topic)
    try:
        until(lambda: sum(recording.end().values()) >= MESSAGES // 4)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        until(lambda: len(nsqd.stats(topic, "c")["clients"]) == 1)
        until(lambda: len(nsqd.stats(topic, "c")["clients"]) == 2)
    finally:
        feeder.join()
    until(lambda: nsqd.stats(topic, "c")["depth"] == nsqd.stats(topic, "c")["in_flight_count"] == 0)
    assert not job.wait(0)
    job.stop()
    assert job.wait(0)
    assert nsqd.stats(topic, "c")["clients"] == []
    bodies = Counter(int(body) for batch in recording.batches() for body in batch["body"].to_pylist())
    assert sorted(bodies) == list(range(MESSAGES))
    assert bodies.total() - MESSAGES <= 2500, "only what one recorder had in flight is in two logs"
    assert len(recording.names()) == 2, "the recorder of the repeated task continues the log"


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
