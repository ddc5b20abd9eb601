"""Recorders as a job in a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.recording import Recording
from gnsq_lite.recording.errors import RecordingError, RecordingNotVisible
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.spark import record
from gnsq_lite.spark.recorders import run_task
from tests.programs import wait_for
from tests.recording.publishing import publish
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def spark() -> Any:
    return spark_session("local[2]")


@pytest.mark.short
@pytest.mark.rule("PIPE-5")
def test_recorders_run_until_they_are_stopped_and_leave_no_message_in_flight(
    spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    nsqd.prepare(topic, "c")
    place, options = str(tmp_path / "recording"), {"nsqdTCPAddresses": nsqd.tcp_address}
    job = record(spark, topic, "c", place, recorders=2, options=options)
    wait_for(lambda: len(nsqd.stats(topic, "c")["clients"]) == 2, 120)
    publish(nsqd.tcp_address, topic, 0, 4000)
    wait_for(lambda: sum(Recording(place).end().values()) >= 2000)
    assert not job.wait(0), "a job runs until it is stopped"
    job.stop()
    stats, recording = nsqd.stats(topic, "c"), Recording(place)
    assert (stats["in_flight_count"], stats["clients"]) == (0, [])
    bodies = [int(body) for batch in recording.batches() for body in batch["body"].to_pylist()]
    assert len(bodies) == len(set(bodies)) == 4000 - stats["depth"]
    assert len(recording.names()) == 2
    assert recording.jobs.names() == []


def test_a_job_that_cannot_record_reports_why(spark: Any, nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    place = str(tmp_path / "recording")
    with pytest.raises(OptionError, match="nsqdTCPAddresses"):
        record(spark, topic, "c", place, options={})
    Recording(place).create(topic, "other")
    options = {"nsqdTCPAddresses": nsqd.tcp_address}
    with pytest.raises(RecordingError, match="is a recording of"):
        record(spark, topic, "c", place, options=options)
    settings = RecorderOptions(topic=topic, channel="other", client={"nsqd_tcp_addresses": [nsqd.tcp_address]})
    with pytest.raises(RecordingNotVisible, match="another recording"):
        run_task(Recording(place), "not-its-uuid", settings, "job")
    assert run_task(Recording(place), Recording(place).meta().uuid, settings, "job") == 0, "its job was stopped"
