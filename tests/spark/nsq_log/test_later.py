"""Logs that come later, lose their beginnings, or whose leaders go while a batch is planned; no network."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.recording.errors import DataLoss
from gnsq_lite.spark.nsq_log import source
from gnsq_lite.spark.nsq_log.cluster import Extent, LogUnavailable
from gnsq_lite.spark.nsq_log.plan import Range
from gnsq_lite.spark.nsq_log.source import NsqLogStreamReader
from tests.spark.nsq_log.fake_logs import FakeLogs, options


class Growing(FakeLogs):
    """A topic of two partitions, the second of which came later; one in *away* has no leader."""

    def __init__(self, **counts: int) -> None:
        super().__init__(**counts)
        self.away: set[int] = set()
        self.trouble = ""
        self.begins: dict[int, int] = {}

    def wanted(self) -> list[int]:
        return sorted(self.counts)

    def extents(self) -> dict[int, Extent]:
        return {
            p: Extent(self.begins.get(p, 0), 10 * count, count)
            for p, count in self.counts.items()
            if p not in self.away
        }

    def at(self, partition: int, place: int) -> Any:
        return super().at(partition, max(place, self.begins.get(partition, 0)))


def stream(cluster: Growing, **more: str) -> NsqLogStreamReader:
    reader = NsqLogStreamReader(options(**more))
    reader._cluster = cluster  # type: ignore[assignment]
    return reader


def planned(reader: NsqLogStreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[Range]:
    return [task.range for task in reader.partitions(begin, end)]  # type: ignore[attr-defined]


BEGIN, END = {"t": {"0": 50}}, {"t": {"0": 100, "1": 40}}


@pytest.mark.rule("PIPE-3")
def test_a_partition_that_came_later_is_read_from_its_begin_by_every_attempt() -> None:
    cluster = Growing(p0=10, p1=4)
    assert stream(cluster).latestOffset(BEGIN, None) == END
    whole = [Range(0, 50, 100), Range(1, 0, 40)]
    assert planned(stream(cluster), BEGIN, END) == whole
    cluster.away = {1}
    assert planned(stream(cluster), BEGIN, END) == whole
    cluster.away, cluster.counts[1] = set(), 9
    assert planned(stream(cluster), BEGIN, END) == whole


@pytest.mark.rule("PIPE-3")
def test_what_retention_took_of_a_partition_that_came_later_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it was ever read: were it begun where its log begins now, attempts would differ, and nobody knew."""
    cluster = Growing(p0=10, p1=4)
    cluster.begins = {1: 20}
    with pytest.raises(DataLoss, match="partition 1 of t lacks 0: the log begins at 20 now"):
        planned(stream(cluster), BEGIN, END)
    assert planned(stream(cluster, failOnDataLoss="false"), BEGIN, END) == [Range(0, 50, 100), Range(1, 20, 40)]
    assert "partition 1 of t lacks 0" in caplog.text


def test_a_limit_holds_in_a_log_whose_beginning_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(Growing):
        """nsqd has no message for a place before its log's."""

        def at(self, partition: int, place: int) -> Any:
            return None if place < self.begins.get(partition, 0) else super().at(partition, place)

    monkeypatch.setattr("gnsq_lite.spark.nsq_log.source.supports_available_now", lambda: True)
    cluster = Strict(p0=100, p1=100)
    cluster.begins = {0: 500, 1: 500}
    reader = stream(cluster, failOnDataLoss="false", maxOffsetsPerTrigger="20")
    assert reader.latestOffset({"t": {"0": 30}}, None) == {"t": {"0": 600, "1": 600}}


def test_a_leader_that_goes_while_a_limit_is_worked_out_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaving(Growing):
        def at(self, partition: int, place: int) -> Any:
            if self.leaves:
                raise LogUnavailable("partition 0 of t has no leader")
            return super().at(partition, place)

        leaves = True

    monkeypatch.setattr("gnsq_lite.spark.nsq_log.source.supports_available_now", lambda: True)
    cluster = Leaving(p0=10)
    reader = stream(cluster, maxOffsetsPerTrigger="2")
    assert reader.latestOffset(BEGIN, None) == BEGIN
    cluster.leaves = False
    assert reader.latestOffset(BEGIN, None) == {"t": {"0": 70}}
    reader.prepareForTriggerAvailableNow()
    cluster.leaves = True
    with pytest.raises(LogUnavailable):  # an offset that stays would be its end
        reader.latestOffset(BEGIN, None)


def test_a_cluster_with_nothing_new_is_asked_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(source.time, "sleep", waits.append)
    cluster = Growing(p0=10)
    reader = stream(cluster)
    assert reader.latestOffset(BEGIN, None) == {"t": {"0": 100}}
    assert waits == []
    assert reader.latestOffset({"t": {"0": 100}}, None) == {"t": {"0": 100}}
    assert waits == [source.PATIENT]
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"t": {"0": 100}}, None) == {"t": {"0": 100}}
    assert len(waits) == 1, "it is the end"


def test_what_lasts_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    cluster = Growing(p0=10, p1=4)
    reader = stream(cluster)

    def warnings(away: set[int]) -> list[str]:
        caplog.clear()
        cluster.away = away
        cluster.trouble = " (no answer)" if away else ""
        for _ in range(5):
            reader.latestOffset(END, None)
        return caplog.messages

    told = ["partitions [1] of t have no leader now (no answer)"]
    assert [warnings(away) for away in ({1}, {1}, set(), {1})] == [told, [], [], told]
