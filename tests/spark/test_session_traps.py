"""What Spark, a disk, a deployment may do to a query, in a real session: each outcome is that of docs/spark.rst."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import TLSOptions, Writer
from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.contract.authserver import AuthServer
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.faulty import FillableSource
from tests.spark.streams import Feed, Sink, stream, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local[2]")


@pytest.fixture
def feed(nsqd: ServerHandle, topic: str, tmp_path: Path) -> Feed:
    return Feed(nsqd, topic, tmp_path)


# -- the spool's disk is full


@pytest.mark.rule("PIPE-2")
def test_a_full_disk_is_waited_for_and_loses_nothing(spark: Any, feed: Feed) -> None:
    spark.dataSource.register(FillableSource)
    sink = Sink()
    feed.publish(0, 100)
    query = stream(spark, feed, sink, source="nsq-fillable")
    until(lambda: len(sink.rows()) == 100 or not query.isActive)
    full = feed.directory / "spool" / "FULL"
    full.touch()
    feed.publish(100, 400)
    until(lambda: feed.channel()["requeue_count"] > 0)
    time.sleep(3.0)
    assert query.isActive
    assert sink.rows() == list(range(100))
    full.unlink()
    until(lambda: len(sink.rows()) >= 500 or not query.isActive)
    query.stop()
    assert sink.rows() == list(range(500)), "each row once: none was stored before its message was sent back"


# -- the checkpoint is gone, or was killed too early


def test_a_deleted_checkpoint_begins_after_the_last_committed_batch(spark: Any, feed: Feed) -> None:
    sink = Sink()
    query = stream(spark, feed, sink)
    for first in (0, 50):  # Spark commits a batch when it makes the next one
        feed.publish(first, 50)
        until(lambda wanted=first + 50: len(sink.rows()) == wanted or not query.isActive)
    query.stop()
    shutil.rmtree(feed.directory / "checkpoint")
    feed.publish(100, 50)
    again = Sink()
    query = stream(spark, feed, again)
    until(lambda: set(again.rows()) >= set(range(100, 150)) or not query.isActive)
    query.stop()
    assert set(sink.rows() + again.rows()) == set(range(150))
    assert min(again.rows()) >= 50, "the last batch may be there twice, a committed one is not"


def test_a_checkpoint_killed_before_its_first_batch_may_be_deleted(spark: Any, feed: Feed) -> None:
    checkpoint = feed.directory / "checkpoint"
    query = stream(spark, feed, Sink())
    feed.publish(0, 100)
    until(lambda: feed.channel()["depth"] == feed.channel()["in_flight_count"] == 0)
    query.stop()
    for log in ("offsets", "commits"):  # as a SIGKILL in the first write of the log leaves it
        for file in (checkpoint / log).iterdir():
            file.unlink()
    (checkpoint / "offsets" / ".0.2b0d9f3e-5f0c-4c43-a9a4-6f4ff6a1b0ce.TID1.tmp").write_text("v1\n")
    sink = Sink()
    query = stream(spark, feed, sink)
    until(lambda: len(sink.rows()) >= 100 or not query.isActive)
    if query.isActive:  # PySpark before 4.3 takes it
        query.stop()
    else:
        assert "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY" in str(query.exception())
        shutil.rmtree(checkpoint)
        query = stream(spark, feed, sink)
        until(lambda: len(sink.rows()) >= 100 or not query.isActive)
        query.stop()
    assert sink.rows() == list(range(100)), "they were acknowledged; the spool has them"


# -- TLS and AUTH, source and sink


@pytest.mark.rule("PIPE-4")
def test_tls_and_auth_hold_from_topic_to_topic(
    spark: Any, make_broker: MakeBroker, certs: Certificates, topic: str, tmp_path: Path
) -> None:
    with AuthServer() as auth:
        auth.allow("hunter2")
        broker = make_broker(
            auth_http_addresses=(auth.address,),
            tls_cert=certs.server.cert,
            tls_key=certs.server.key,
            tls_required="tcp-https",
        )
        where = {"nsqdTCPAddresses": broker.tcp_address, "nsq.tlsCaFile": certs.ca}
        known = {**where, "nsq.authSecret": "hunter2"}
        with Writer(broker.tcp_address, tls=TLSOptions(ca_file=certs.ca), auth_secret="hunter2") as writer:
            writer.multipublish(topic, [b"%d" % n for n in range(50)])
        source = {**known, "topic": topic, "channel": "c", "recording": str(tmp_path / "spool"), "idleTimeoutMs": "500"}
        frame = spark.readStream.format("nsq").options(**source).load()
        query = (
            frame.selectExpr("concat('<', string(body), '>') AS body")
            .writeStream.format("nsq")
            .options(**known, topic=topic + "-out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        until(lambda: broker.stats(topic + "-out").get("message_count", 0) >= 50 or not query.isActive)
        until(lambda: query.lastProgress is not None or not query.isActive)
        query.stop()
        assert broker.stats(topic + "-out")["message_count"] == 50
        assert "hunter2" not in query.lastProgress.json
        wrong = {**where, "nsq.authSecret": "wrong-secret"}
        with pytest.raises(Exception, match=r"E_AUTH|E_UNAUTH|[Uu]nauthori") as caught:
            spark.range(1).selectExpr("'x' AS body").write.format("nsq").options(
                **wrong, topic=topic, publishTimeoutMs="2000", maxRetries="0"
            ).mode("append").save()
        assert "wrong-secret" not in str(caught.value)
