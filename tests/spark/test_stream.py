"""The streaming and the batch reader as Spark calls them, without Spark and without a network."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.errors import ConnectError, OptionError
from gnsq_lite.recording import local
from gnsq_lite.recording.errors import DataLoss, RecordingError, RecordingInUse, RecordingNotVisible
from gnsq_lite.recording.recording import Recording
from gnsq_lite.spark import embedded, reading, stream
from gnsq_lite.spark.batch import NsqBatchReader
from gnsq_lite.spark.offsets import MinimumRows, limited, parse_position
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.stream import NsqStreamReader
from tests.fakes import FakeClock
from tests.recording.fakes import FakeMessage, FakeReceiver

RECEIVERS: list[FakeReceiver] = []


class Reader(NsqStreamReader):
    """With messages by hand."""

    def _make_receiver(self) -> Any:
        RECEIVERS.append(FakeReceiver())
        return RECEIVERS[-1]


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(embedded, "LOCK_WAIT", 0.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(stream, "supports_available_now", lambda: True)
    made: list[Reader] = []

    def make(**more: str) -> Reader:
        base = {"topic": "t", "channel": "c", "recording": str(tmp_path / "spool"), "nsqdTCPAddresses": "n"}
        reader = Reader(parse(SourceOptions, {**base, **more}))
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def feed(reader: Reader, first: int, count: int, timestamp_ns: int | None = None) -> None:
    receiver = RECEIVERS[-1]
    messages = [FakeMessage(n, b"%d" % n, timestamp_ns=timestamp_ns) for n in range(first, first + count)]
    for message in messages:
        receiver.take(message)
    deadline = time.monotonic() + 10
    while not all(m.answer for m in messages):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def rows(reader: Reader, start: Any, end: Any) -> list[int]:
    copy = pickle.loads(pickle.dumps(reader))  # what a task gets
    found = []
    for partition in reader.partitions(start, end):
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return found


def test_a_batch_has_what_came_and_the_next_what_came_later(readers: Any) -> None:
    reader = readers()
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start
    feed(reader, 0, 3)
    first = reader.latestOffset(start, None)
    feed(reader, 3, 2)
    second = reader.latestOffset(first, None)
    assert (rows(reader, start, first), rows(reader, first, second)) == ([0, 1, 2], [3, 4])


@pytest.mark.rule("PIPE-3")
def test_a_batch_that_runs_again_after_a_restart_has_the_same_rows(readers: Any) -> None:
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 7)
    end = reader.latestOffset(start, None)
    before = [repr(p) for p in reader.partitions(start, end)]
    reader.stop()
    again = readers()
    assert [repr(p) for p in again.partitions(start, end)] == before, "partitions() is the first call of a restart"
    feed(again, 7, 2)
    assert rows(again, start, end) == list(range(7))
    assert rows(again, end, again.latestOffset(end, None)) == [7, 8]


def test_the_constructor_does_nothing_and_a_copy_carries_no_recorder(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    assert not (tmp_path / "spool").exists()
    assert reader.initialOffset() == {}
    assert pickle.loads(pickle.dumps(reader))._embedded is None


@pytest.mark.rule("PIPE-3")
def test_a_limit_ends_inside_a_flush_also_one_that_a_restart_lowers(readers: Any) -> None:
    reader = readers(maxOffsetsPerTrigger="7")
    start = reader.initialOffset()
    feed(reader, 0, 20)
    first = reader.latestOffset(start, None)
    assert rows(reader, start, first) == list(range(7))
    reader.stop()
    again = readers(maxOffsetsPerTrigger="3")
    assert rows(again, start, first) == list(range(7)), "partitions() is the first call of a restart"
    second = again.latestOffset(first, None)
    assert rows(again, first, second) == [7, 8, 9]


@pytest.mark.rule("PIPE-5")
def test_a_batch_has_as_many_tasks_as_cores_and_at_least_min_partitions(
    readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(reading, "TASK_ROWS", 5)
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 40)
    end = reader.latestOffset(start, None)
    assert len(reader.partitions(start, end)) == 4
    assert rows(reader, start, end) == list(range(40))
    (name,) = end
    assert len(reader.partitions(start, {name: 9})) == 2
    reader.stop()
    more = readers(minPartitions="8")
    assert len(more.partitions(start, end)) == 8
    assert rows(more, start, end) == list(range(40))
    more.stop()
    assert len(readers(ordered="true").partitions(start, end)) == 1


def test_a_large_batch_has_more_tasks_than_the_driver_has_cores(readers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGE_TASK", 10)
    monkeypatch.setattr(reading, "LARGE_TASKS", 3)
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 50)
    (name,) = end = reader.latestOffset(start, None)
    counts = {row: len(reader.partitions(start, {name: row})) for row in (19, 20, 50)}
    assert counts == {19: 1, 20: 2, 50: 3}
    assert rows(reader, start, end) == list(range(50))


def test_logs_share_a_limit_by_what_waits() -> None:
    assert limited({"a": 5}, {"a": 15, "b": 30}, 8) == {"a": 7, "b": 6}
    assert limited({"a": 5}, {"a": 15, "b": 30}, None) == {"a": 15, "b": 30}
    assert limited({"a": 5}, {"a": 5}, 3) == {"a": 5}
    assert sum(limited({}, {"a": 1, "b": 1, "c": 1000}, 10).values()) == 10


def test_an_answer_waits_a_moment_for_a_row(readers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = readers()
    start = reader.initialOffset()
    begun = time.monotonic()
    assert reader.latestOffset(start, None) == start
    assert time.monotonic() - begun >= stream.PATIENT
    monkeypatch.setattr(stream, "PATIENT", 60.0)
    later = threading.Timer(0.05, feed, [reader, 0, 3])
    later.start()
    end = reader.latestOffset(start, None)
    later.join()
    while sum(end.values()) < 3:  # the first flush may have fewer
        end = reader.latestOffset(start, None)
    assert rows(reader, start, end) == [0, 1, 2]
    feed(reader, 3, 1)
    assert sum(reader.latestOffset(end, None).values()) == 4, "a row that is there is not waited for"
    assert time.monotonic() - begun < 55


def test_the_progress_shows_the_lag_and_the_recorder(readers: Any) -> None:
    reader = readers()
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    feed(reader, 0, 5)
    found = reader.reportLatestOffset()
    assert (found["waiting"], found["inFlight"], found["missing"], found["depth"]) == (5, 0, [], None)
    assert (found["topic"], found["channel"], found["copiesDropped"], found["trouble"]) == ("t", "c", 0, "")
    assert found["bytesOnDisk"] > 0
    assert list(found["logs"].values()) == [5]
    reader.partitions(start, reader.latestOffset(start, None))
    assert reader.reportLatestOffset()["waiting"] == 0


def test_committed_packs_go_and_a_new_query_starts_after_them(
    readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PACK_BYTES", 1)
    monkeypatch.setattr(embedded, "KEPT_FILES", 3)
    reader = readers()
    ends = [reader.initialOffset()]
    for number in range(12):
        feed(reader, number, 1)
        ends.append(reader.latestOffset(ends[-1], None))
        reader.commit(ends[-2])
    assert len(list((tmp_path / "spool").glob("logs/*/pack-*"))) <= 5
    feed(reader, 3, 1)  # a copy: known though its row is gone
    assert reader.latestOffset(ends[-1], None) == ends[-1]
    reader.stop()
    other = readers()  # the checkpoint was deleted, the recording kept
    begin = other.initialOffset()
    assert begin == ends[-2]
    assert rows(other, begin, other.latestOffset(begin, None)) == [11], "what was not committed comes again"


@pytest.mark.rule("PIPE-2")
def test_no_message_is_received_before_the_checkpoint_was_found_valid(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    reader.initialOffset()
    feed(reader, 0, 3)
    reader.stop()
    (log,) = Recording(str(tmp_path / "spool")).names()
    for position in ({log: 10}, {"gone": 1}, {log: 1, "gone": 1}):
        made = len(RECEIVERS)
        other = readers()
        with pytest.raises(DataLoss, match=r"older copy|is gone"):
            other.latestOffset(position, None)
        assert len(RECEIVERS) == made, "the channel is not drained into a recording that is refused"
        other.stop()


def test_a_recording_restored_from_an_older_copy_gives_no_number_twice(readers: Any) -> None:
    reader = readers()
    reader.initialOffset()
    feed(reader, 0, 2)
    (name,) = reader.latestOffset({}, None)
    reader.stop()
    other = readers(failOnDataLoss="false")
    ahead = {name: 10}
    assert other.latestOffset(ahead, None) == ahead
    feed(other, 5, 2)
    end = other.latestOffset(ahead, None)
    assert end[name] == 10, "the rows have a log of their own"
    assert rows(other, ahead, end) == [5, 6]


def test_a_checkpoint_restored_from_an_older_copy_is_reported(readers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Were all its rows there, it would still give new ones the numbers of batches that a sink has."""
    reader = readers()
    ends = [reader.initialOffset()]
    for number in range(4):
        feed(reader, number, 1)
        ends.append(reader.latestOffset(ends[-1], None))
        reader.commit(ends[-2])
    reader.stop()
    for ask in (lambda one: one.latestOffset(ends[1], None), lambda one: one.partitions(ends[1], ends[2])):
        again = readers()
        with pytest.raises(DataLoss, match=r"committed up to row 3, not 1: the checkpoint is an older copy"):
            ask(again)
        again.stop()
    right = readers()
    assert rows(right, ends[3], ends[4]) == [3]
    right.stop()
    other = readers(failOnDataLoss="false")
    assert rows(other, ends[1], other.latestOffset(ends[1], None)) == [3]
    assert "older copy" in caplog.text


def test_a_lost_pack_is_data_loss_or_left_out(readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PACK_BYTES", 1)
    reader = readers()
    start = reader.initialOffset()
    for number in range(3):
        feed(reader, number, 1)
    end = reader.latestOffset(start, None)
    next((tmp_path / "spool").glob("logs/*/pack-*1.rec")).unlink()
    with pytest.raises(DataLoss, match="begins at row 2"):
        reader.partitions(start, end)
    reader.stop()
    assert rows(readers(failOnDataLoss="false"), start, end) == [1, 2]


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("elsewhere", ["nothing", "another recording"])
def test_a_directory_the_executor_does_not_see_fails_the_task_and_is_no_loss(
    readers: Any, tmp_path: Path, fail_on_data_loss: str, elsewhere: str
) -> None:
    reader = readers(failOnDataLoss=fail_on_data_loss)
    start = reader.initialOffset()
    feed(reader, 0, 1)
    (partition,) = reader.partitions(start, reader.latestOffset(start, None))
    place = tmp_path / "executor"
    if elsewhere != "nothing":
        Recording(str(place)).create("t", "c", owned=True)
    copy = readers(failOnDataLoss=fail_on_data_loss)
    partition.url = str(place)
    with pytest.raises(RecordingNotVisible, match="executors must see the same recording"):
        list(copy.read(partition))


def test_a_second_query_that_records_is_refused_and_readers_are_not(readers: Any, tmp_path: Path) -> None:
    first = readers()
    first.initialOffset()
    with pytest.raises(RecordingInUse, match=r"written by another process.*use foreachBatch.*omit the option topic"):
        readers().initialOffset()
    feed(first, 0, 3)
    for _ in range(2):
        follower = NsqStreamReader(parse(SourceOptions, {"recording": str(tmp_path / "spool")}))
        assert sum(follower.initialOffset().values()) == 3
        assert rows(follower, {}, follower.latestOffset({}, None)) == [0, 1, 2]


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(RecordingError, match="another checkpointLocation"):
        parse_position({"v": 1, "spool": "u", "seg": 3})


# -- a recording that others write


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[int, int], str]:
    """Appends rows to a new log, or to the one it has; returns the log's name."""
    place = str(tmp_path / "recorded")
    Recording(place).create("t", "c")
    writers: list[Any] = []

    def append(first: int, count: int, new: bool = False) -> str:
        if new or not writers:
            writers.append(Recording(place).take())
        messages = [FakeMessage(n, b"%d" % n) for n in range(first, first + count)]
        writers[-1].append([(-1, to_batch(messages))])
        return str(writers[-1].name)

    return append


def follower(tmp_path: Path, **more: str) -> NsqStreamReader:
    return NsqStreamReader(parse(SourceOptions, {"recording": str(tmp_path / "recorded"), **more}))


def test_a_query_reads_the_logs_of_recorders_that_join_and_leave(tmp_path: Path, recorded: Any) -> None:
    one = recorded(0, 3)
    reader = follower(tmp_path, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {}
    first = reader.latestOffset(start, None)
    assert rows(reader, start, first) == [0, 1, 2]
    two = recorded(10, 2, new=True)
    recorded(12, 1)
    second = reader.latestOffset(first, None)
    assert second == {one: 3, two: 3}
    assert list(second) == sorted(second), "Spark compares offsets as text: the order counts"
    assert rows(reader, first, second) == [10, 11, 12]
    Recording(str(tmp_path / "recorded")).reader(one).retire()
    assert reader.latestOffset(second, None) == second
    reader.commit(second)
    assert rows(follower(tmp_path), {}, second) == [0, 1, 2, 10, 11, 12] or len(second) == 2


@pytest.mark.parametrize("given", ["{0}/one, {0}/two", "{0}"])
def test_several_recordings_are_read_as_one(tmp_path: Path, given: str) -> None:
    """The recordings are named, or are directly in a folder that is no recording."""
    logs = []
    for topic, first, count in (("one", 0, 3), ("two", 10, 2)):
        recording = Recording(str(tmp_path / topic))
        recording.create(topic, "c")
        logs.append(recording.take())
        logs[-1].append([(-1, to_batch([FakeMessage(n, b"%d" % n) for n in range(first, first + count)]))])
    (tmp_path / "no recording").mkdir()
    options = {"recording": given.format(tmp_path), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    reader = NsqStreamReader(parse(SourceOptions, options))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    found = rows(reader, start, end)
    assert len(found) == 4
    later = reader.latestOffset(end, None)
    assert sorted(found + rows(reader, end, later)) == [0, 1, 2, 10, 11]
    assert later == dict(sorted({logs[0].name: 3, logs[1].name: 2}.items()))
    again = NsqStreamReader(parse(SourceOptions, options))
    assert sorted(rows(again, {}, later)) == [0, 1, 2, 10, 11], "partitions() is the first call of a restart"
    batch = NsqBatchReader(parse(SourceOptions, options))
    found = [int(b) for p in batch.partitions() for one in batch.read(p) for b in one["body"].to_pylist()]
    assert sorted(found) == [0, 1, 2, 10, 11]
    (tmp_path / "one").rename(tmp_path.parent / f"{tmp_path.name}-gone")
    with pytest.raises(DataLoss, match="is gone"):
        NsqStreamReader(parse(SourceOptions, options)).latestOffset(later, None)


def test_a_query_that_records_has_one_recording() -> None:
    with pytest.raises(OptionError, match="must be one recording"):
        parse(SourceOptions, {"topic": "t", "channel": "c", "recording": "/a,/b", "nsqdTCPAddresses": "n"})


def test_available_now_of_a_recording_is_what_was_there_when_it_began(tmp_path: Path, recorded: Any) -> None:
    recorded(0, 5)
    reader = follower(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    recorded(5, 5)
    found = []
    while (end := reader.latestOffset(start, None)) != start:
        found.append(rows(reader, start, end))
        start = end
    assert found == [[0, 1], [2, 3], [4]]


def test_starting_offsets_are_earliest_latest_json_or_a_time(tmp_path: Path, recorded: Any) -> None:
    name = recorded(0, 5)
    assert follower(tmp_path).initialOffset() == {name: 5}
    assert follower(tmp_path, startingOffsets="latest").initialOffset() == {name: 5}
    given = follower(tmp_path, startingOffsets=f'{{"{name}": 2}}')
    assert rows(given, given.initialOffset(), given.latestOffset({name: 2}, None)) == [2, 3, 4]
    timed = follower(tmp_path, startingTimestamp="1700000000001")
    assert timed.initialOffset() == {name: 5}
    with pytest.raises(OptionError, match="startingOffsets"):
        follower(tmp_path, startingOffsets="soon").initialOffset()
    with pytest.raises(RecordingError, match="there is no recording"):
        NsqStreamReader(parse(SourceOptions, {"recording": str(tmp_path / "none")})).initialOffset()


def test_retention_that_overtakes_a_query_is_data_loss(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PACK_BYTES", 1)
    name = recorded(0, 2)
    recorded(2, 2)
    recorded(4, 2)
    Recording(str(tmp_path / "recorded")).trim(1e-9)
    with pytest.raises(DataLoss, match="begins at row 5"):
        follower(tmp_path).latestOffset({name: 1}, None)
    loose = follower(tmp_path, failOnDataLoss="false")
    assert rows(loose, {name: 1}, loose.latestOffset({name: 1}, None)) == [4, 5]


def test_a_batch_has_the_same_rows_for_every_action(tmp_path: Path, recorded: Any) -> None:
    name = recorded(0, 6)
    options = parse(SourceOptions, {"recording": str(tmp_path / "recorded"), "endingOffsets": f'{{"{name}": 5}}'})
    batch = NsqBatchReader(options)
    found = batch.partitions()
    recorded(6, 3)
    for _ in range(2):
        assert [int(b) for p in found for one in batch.read(p) for b in one["body"].to_pylist()] == list(range(5))
    empty = NsqBatchReader(parse(SourceOptions, {"recording": str(tmp_path / "recorded"), "startingOffsets": "latest"}))
    assert [one for p in empty.partitions() for one in empty.read(p)] == []


def test_rows_per_trigger_are_limited(readers: Any) -> None:
    reader = readers(maxOffsetsPerTrigger="4")
    end = reader.initialOffset()
    feed(reader, 0, 10)
    sizes = []
    for _ in range(4):
        start, end = end, reader.latestOffset(end, None)
        sizes.append(len(rows(reader, start, end)))
    assert sizes == [4, 4, 2, 0]


def test_a_batch_waits_for_min_offsets_and_no_longer_than_the_delay(readers: Any) -> None:
    reader = readers(minOffsetsPerTrigger="4", maxTriggerDelay="1h")
    start = reader.initialOffset()
    for number in range(3):
        feed(reader, number, 1)
        assert reader.latestOffset(start, None) == start
    feed(reader, 3, 1)
    end = reader.latestOffset(start, None)
    assert len(rows(reader, start, end)) == 4
    assert reader.latestOffset(end, None) == end
    clock = FakeClock()
    patience = MinimumRows(4, 10.0, clock)
    assert (patience.waits(lambda: 1), patience.waits(lambda: 4), patience.waits(lambda: 1)) == (True, False, True)
    clock.advance(10.0)
    assert (patience.waits(lambda: 1), patience.waits(lambda: 1)) == (False, True)
    assert not MinimumRows(None, 10.0, clock).waits(lambda: 1)


def test_sparks_own_limit_counts_too(readers: Any) -> None:
    class ReadMaxRows:
        max_rows = 3

    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 10)
    assert len(rows(reader, start, reader.latestOffset(start, ReadMaxRows()))) == 3


def test_old_pyspark_passes_no_position(readers: Any) -> None:
    reader = readers(maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    feed(reader, 0, 3)
    first = reader.latestOffset()
    second = reader.latestOffset()
    assert (rows(reader, start, first), rows(reader, first, second)) == ([0, 1], [2])


@pytest.mark.parametrize(("offsets", "sizes"), [("earliest", [2, 2, 2]), ("latest", [0, 2, 1])])
def test_old_pyspark_requests_the_first_batch_before_the_start(
    tmp_path: Path, recorded: Any, offsets: str, sizes: list[int]
) -> None:
    """PySpark before 4.2 calls latestOffset() without a start, then initialOffset().  Another query has committed."""
    name = recorded(0, 6)
    Recording(str(tmp_path / "recorded")).commit({name: 1})
    reader = follower(tmp_path, startingOffsets=offsets, maxOffsetsPerTrigger="2")
    end = reader.latestOffset()
    recorded(6, 3)
    start, found = reader.initialOffset(), []
    for _ in sizes:
        found.append(len(rows(reader, start, end)))
        start, end = end, reader.latestOffset()
    assert found == sizes


def test_a_spool_that_took_anothers_place_is_data_loss(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 1)
    end = reader.latestOffset(start, None)
    reader.stop()
    (tmp_path / "spool").rename(tmp_path / "gone")
    with pytest.raises(DataLoss, match="is gone; the checkpoint"):
        readers().latestOffset(end, None)


def test_a_spool_that_took_anothers_place_is_data_loss_where_spark_tells_no_start(readers: Any, tmp_path: Path) -> None:
    """PySpark before 4.2: the offset of the checkpoint comes with the plan of a batch alone."""
    reader = readers()
    reader.initialOffset()
    feed(reader, 0, 1)
    end = reader.latestOffset()
    reader.stop()
    (tmp_path / "spool").rename(tmp_path / "gone")
    other = readers()
    later = other.latestOffset()
    with pytest.raises(DataLoss, match="is gone; the checkpoint"):
        other.partitions(end, later)


def test_a_replaced_spool_goes_on_where_loss_is_allowed(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 1)
    end = reader.latestOffset(start, None)
    reader.stop()
    (tmp_path / "spool").rename(tmp_path / "gone")
    other = readers(failOnDataLoss="false")
    assert other.partitions(start, end) == []
    feed(other, 5, 2)
    later = other.latestOffset(end, None)
    assert rows(other, end, later) == [5, 6]


def test_a_relative_directory_is_the_drivers(readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = readers(recording="work/spool")
    start = reader.initialOffset()
    feed(reader, 0, 2)
    end = reader.latestOffset(start, None)
    partitions = reader.partitions(start, end)
    monkeypatch.chdir("/")  # an executor's working directory
    copy = pickle.loads(pickle.dumps(reader))
    assert sum(batch.num_rows for partition in partitions for batch in copy.read(partition)) == 2


def test_available_now_ends_when_the_backlog_is_read_though_new_messages_come(readers: Any) -> None:
    reader = readers(idleTimeoutMs="150")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed(reader, 0, 2, timestamp_ns=1)
    begun, late = time.monotonic(), time.time_ns()
    ended = threading.Event()

    def flow() -> None:
        number = 2
        while not ended.wait(0.01):
            feed(reader, number, 1, timestamp_ns=late)
            number += 1

    flowing = threading.Thread(target=flow)
    flowing.start()
    end = reader.latestOffset(start, None)
    assert time.monotonic() - begun >= 0.1
    assert reader.latestOffset(end, None) == end
    ended.set()
    flowing.join()
    assert rows(reader, start, end)[:3] == [0, 1, 2], "a small backlog, and the rows stored meanwhile, are one batch"


def test_available_now_makes_each_batch_as_large_as_all_before_it(
    readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "GATHERED", 3)
    reader = readers(idleTimeoutMs="60000")
    position = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    ends, fed = [], 0
    for count in (3, 3, 6, 12):
        feed(reader, fed, count - 1, timestamp_ns=1)
        timer = threading.Timer(0.1, feed, (reader, fed + count - 1, 1, 1))
        timer.start()
        end = reader.latestOffset(position, None)
        timer.join()
        ends.append(len(rows(reader, position, end)))
        position, fed = end, fed + count
    assert ends == [3, 3, 6, 12]


def test_available_now_waits_for_no_silence_between_batches_of_the_backlog(readers: Any) -> None:
    reader = readers(idleTimeoutMs="60000", maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed(reader, 0, 6, timestamp_ns=1)
    for first in (0, 2, 4):
        end = reader.latestOffset(start, None)
        assert rows(reader, start, end) == [first, first + 1]
        start = end


def test_available_now_hands_over_what_fills_the_spool(readers: Any) -> None:
    reader = readers(idleTimeoutMs="60000", maxWaitingBytes="4k")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed(reader, 0, 99, timestamp_ns=time.time_ns())
    reader._seen = reader._embedded.started().backlog_seen
    assert rows(reader, start, reader.latestOffset(start, None)) == list(range(99))


def test_available_now_waits_for_a_slow_backlog(readers: Any) -> None:
    reader = readers(idleTimeoutMs="1000")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    timer = threading.Timer(0.3, lambda: feed(reader, 0, 1, timestamp_ns=1))
    timer.start()
    assert rows(reader, start, reader.latestOffset(start, None)) == [0]
    timer.join()


def test_available_now_without_any_nsqd_is_an_error_and_not_an_empty_result(readers: Any) -> None:
    reader = readers(idleTimeoutMs="50", connectTimeoutMs="150")
    start = reader.initialOffset()
    RECEIVERS[-1].connected = False
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(ConnectError, match="no nsqd with topic t"):
        reader.latestOffset(start, None)


def test_old_pyspark_says_nothing_of_available_now_so_the_first_batch_waits_for_the_backlog(readers: Any) -> None:
    reader = readers(idleTimeoutMs="500", maxOffsetsPerTrigger="3")
    start = reader.initialOffset()
    reader._waits_for_backlog = True
    timer = threading.Timer(0.2, lambda: feed(reader, 0, 2, timestamp_ns=1))
    timer.start()
    first = reader.latestOffset()
    timer.join()
    assert rows(reader, start, first) == [0, 1]
    feed(reader, 2, 1)
    assert rows(reader, first, reader.latestOffset()) == [2], "later ones do not wait"


def test_old_pyspark_waits_for_no_more_than_a_batch_may_have(readers: Any, caplog: pytest.LogCaptureFixture) -> None:
    reader = readers(idleTimeoutMs="60000", maxOffsetsPerTrigger="3")
    start = reader.initialOffset()
    reader._waits_for_backlog = True
    timer = threading.Timer(0.1, lambda: feed(reader, 0, 4, timestamp_ns=1))
    timer.start()
    first = reader.latestOffset()
    timer.join()
    assert len(rows(reader, start, first)) == 3
    assert "AvailableNow reads only this amount" in caplog.text


def test_old_pyspark_goes_on_without_an_nsqd_for_the_query_may_be_a_lasting_one(readers: Any) -> None:
    reader = readers(idleTimeoutMs="50", connectTimeoutMs="100")
    start = reader.initialOffset()
    reader._waits_for_backlog = True
    RECEIVERS[-1].connected = False
    assert reader.latestOffset() == start


def test_stop_leaves_the_lock_and_may_be_called_twice(readers: Any) -> None:
    reader = readers()
    reader.initialOffset()
    reader.stop()
    reader.stop()
    assert RECEIVERS[-1].calls[-1] == "stop"
    readers().initialOffset()


def test_the_process_of_a_source_outlives_a_sigterm_and_seldom_collects_garbage() -> None:
    program = """
import gc, signal, sys, types
from gnsq_lite.spark import stream
before = gc.get_threshold()
stream.settle_process()
print(gc.get_threshold() == before, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.sql.streaming.python_streaming_source_runner")
stream.settle_process()
print(gc.get_threshold()[0] >= 50_000, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["True", "False", "True", "True"]
