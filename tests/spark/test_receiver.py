"""The source with its real receiver, against an nsqd; no Spark session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from gnsq_lite.consume.rows import count_rows, split_all
from gnsq_lite.errors import ConnectError
from gnsq_lite.message import Message
from gnsq_lite.options import format_address
from gnsq_lite.recording import Recording, daemon
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.receiver import Receiver
from gnsq_lite.spark import recorders
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.stream import NsqStreamReader
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Any]:
    made: list[NsqStreamReader] = []

    def make(**more: str) -> NsqStreamReader:
        base = {"topic": "t", "channel": "c", "recording": str(tmp_path / "spool")}
        made.append(NsqStreamReader(parse(SourceOptions, {**base, **more})))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def publish(address: str, first: int, count: int) -> None:
    with Writer(address) as writer:
        writer.multipublish("t", [b"%d" % n for n in range(first, first + count)])


def rows(reader: NsqStreamReader, wanted: int) -> list[int]:
    """Return the bodies of as many batches as it takes."""
    end = reader.initialOffset()
    found: list[int] = []
    deadline = time.monotonic() + 120
    while len(found) < wanted and time.monotonic() < deadline:
        start, end = end, reader.latestOffset(end, None)
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                found += [int(body) for body in batch.column("body").to_pylist()]
        time.sleep(0.02)
    return found


def test_more_in_flight_than_nsqd_allows_a_connection_is_no_error(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 6000)
    reader = readers(nsqdTCPAddresses=nsqd.tcp_address, maxInFlight="10000")
    assert sorted(rows(reader, 6000)) == list(range(6000))


def test_an_orderly_stop_leaves_nothing_in_flight(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 20_000)
    reader = readers(nsqdTCPAddresses=nsqd.tcp_address)
    reader.initialOffset()
    wait_for(lambda: nsqd.stats("t", "c").get("in_flight_count", 0))
    reader.stop()
    after = nsqd.stats("t", "c")
    assert after["in_flight_count"] == 0
    again = readers(nsqdTCPAddresses=nsqd.tcp_address)
    found = rows(again, 20_000)
    assert sorted(found) == list(range(20_000)), "every row once, over the restart"


def test_a_msg_timeout_nsqd_refuses_is_named_in_the_error(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 1)
    reader = readers(nsqdTCPAddresses=nsqd.tcp_address, connectTimeoutMs="1500", **{"nsq.msgTimeoutMs": "86400000"})
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(ConnectError, match=r"no nsqd with topic t.*E_BAD_BODY"):
        reader.latestOffset(start, None)


@pytest.mark.rule("PIPE-4")
def test_nsqds_are_found_through_lookupd(readers: Any) -> None:
    with Broker(nsqds=2) as broker:
        for number, address in enumerate(broker.nsqd_tcp_addresses):
            publish(address, number * 100, 100)
        reader = readers(lookupdHTTPAddresses=broker.lookupd_http_address)
        assert sorted(rows(reader, 200)) == list(range(200))


def test_several_receivers_side_by_side_share_the_channel(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 3000)
    reader = readers(nsqdTCPAddresses=nsqd.tcp_address, connectionsPerNsqd="3", maxInFlight="100")
    assert sorted(rows(reader, 3000)) == list(range(3000))


def test_connections_that_end_are_counted_and_failed_attempts_are_not(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 5)
    with Proxy(nsqd.tcp_address) as proxy:
        reader = readers(nsqdTCPAddresses=proxy.address)
        assert sorted(rows(reader, 5)) == list(range(5))
        recorder = reader._embedded.started()
        proxy.refusing = True
        proxy.reset()
        wait_for(lambda: recorder.missing() == [proxy.address])
        time.sleep(1.0)  # further attempts fail
        proxy.clear()
        wait_for(recorder.is_connected)
        assert recorder.lost() == 1


def drain(reader: NsqStreamReader, ends: list[Any]) -> None:
    """Add the offsets of AvailableNow's batches to *ends*."""
    while (end := reader.latestOffset(ends[-1], None)) != ends[-1]:
        ends.append(end)


def test_an_nsqd_that_is_away_ends_available_now_with_an_error_after_the_rows_of_the_others(
    nsqd: ServerHandle, readers: Any
) -> None:
    publish(nsqd.tcp_address, 0, 5)
    with Broker() as broker:
        gone = format_address(broker.tcp_address)
    both = f"{nsqd.tcp_address},{gone}"
    reader = readers(nsqdTCPAddresses=both, idleTimeoutMs="200", connectTimeoutMs="1500")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    ends = [start]
    with pytest.raises(ConnectError, match=f"{gone}.*onMissingNsqd=warn"):
        drain(reader, ends)
    assert sum(b.num_rows for p in reader.partitions(start, ends[-1]) for b in reader.read(p)) == 5
    assert reader._embedded.started().missing() == [gone]


def test_an_nsqd_that_is_away_may_be_done_without(nsqd: ServerHandle, readers: Any) -> None:
    publish(nsqd.tcp_address, 0, 5)
    with Broker() as broker:
        gone = format_address(broker.tcp_address)
    more = {"idleTimeoutMs": "200", "connectTimeoutMs": "500", "onMissingNsqd": "warn"}
    reader = readers(nsqdTCPAddresses=f"{nsqd.tcp_address},{gone}", **more)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    ends = [start]
    drain(reader, ends)
    assert sum(b.num_rows for p in reader.partitions(start, ends[-1]) for b in reader.read(p)) == 5


def test_a_receiver_hands_over_reads_and_leaves_them_unanswered(nsqd: ServerHandle, tmp_path: Path) -> None:
    publish(nsqd.tcp_address, 0, 2000)
    base = {"topic": "t", "channel": "c", "recording": str(tmp_path), "nsqdTCPAddresses": nsqd.tcp_address}
    receiver = Receiver(parse(SourceOptions, base).recorder())
    reads: list[Message] = []
    receiver.start(reads.append)
    wait_for(lambda: count_rows(reads) == 2000)
    assert len(reads) <= 200, "what is done per read is done per message else"
    messages = split_all(reads)
    assert sorted(int(message.body) for message in messages) == list(range(2000))
    assert not any(message.has_responded for message in messages)
    for message in messages:
        message.finish()
    receiver.stop(10.0)
    assert nsqd.stats("t", "c")["depth"] == nsqd.stats("t", "c")["in_flight_count"] == 0


def test_the_time_to_stop_is_that_of_all_receivers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()

    class Hanging:
        def close(self, timeout: float, *, wait: bool = True) -> None:
            clock.advance(timeout if wait else 0.0)

    base = {"topic": "t", "channel": "c", "recording": "/s", "nsqdTCPAddresses": "n", "connectionsPerNsqd": "3"}
    receiver = Receiver(parse(SourceOptions, base).recorder(), clock=clock)
    receiver._readers = [Hanging() for _ in range(3)]  # type: ignore[misc]
    begun = clock.now()
    receiver.stop(5.0)
    assert clock.now() - begun == 5.0


def test_a_recorder_of_a_spark_job_ends_when_its_parent_process_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(str(tmp_path))
    found = recording.create("t", "c")
    recording.jobs.write("job", b"")
    parents = iter([7, 7, 7, 7])
    waits: list[bool] = []

    def record(recorder: object, _: object, options: object, wait: Callable[[float], bool]) -> None:
        while not wait(0.0):
            waits.append(True)

    monkeypatch.setattr(recorders, "settle_worker", lambda: None)
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    monkeypatch.setattr(daemon, "record", record)
    options = RecorderOptions(topic="t", channel="c", client={"nsqd_tcp_addresses": ["127.0.0.1:1"]})
    assert recorders.run_task(recording, found.uuid, options, "job") == 0
    assert len(waits) == 2
    assert recording.jobs.names() == ["job"]
