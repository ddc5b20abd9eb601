"""The streaming reader as Spark calls it, without Spark and without a network."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.errors import ConnectError
from gnsq_lite.spark import options, places, segments, stream
from gnsq_lite.spark.offsets import Limits, Offset, Patience, parse_offset
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.spoolmeta import DataLoss, SpoolError, SpoolInUse, SpoolNotVisible
from gnsq_lite.spark.stream import NsqStreamReader
from tests.fakes import FakeClock
from tests.spark.fakes import FakeMessage, FakeReceiver

RECEIVERS: list[FakeReceiver] = []


class Reader(NsqStreamReader):
    """With messages by hand."""

    def _make_receiver(self) -> Any:
        RECEIVERS.append(FakeReceiver())
        return RECEIVERS[-1]


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(places, "LOCK_WAIT", 0.0)
    made: list[Reader] = []

    def make(segment_rows: int = 50_000, **more: str) -> Reader:
        monkeypatch.setattr(options, "SEGMENT_ROWS", segment_rows)
        base = {"topic": "t", "channel": "c", "spoolDir": str(tmp_path / "spool"), "nsqdTCPAddresses": "n"}
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


def test_the_constructor_does_nothing_and_a_copy_carries_no_receiver(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    assert not (tmp_path / "spool").exists()
    start = reader.initialOffset()
    assert pickle.loads(pickle.dumps(reader))._collector is None
    assert list(start) == ["v", "spool", "seg"], "Spark compares offsets as text: the order counts"


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
    reader = readers(segment_rows=2)
    start = reader.initialOffset()
    feed(reader, 0, 7)
    end = reader.latestOffset(start, None)
    before = [repr(p) for p in reader.partitions(start, end)]
    reader.stop()
    again = readers(segment_rows=2)
    assert [repr(p) for p in again.partitions(start, end)] == before, "partitions() is the first call of a restart"
    feed(again, 7, 2)
    assert rows(again, start, end) == list(range(7))
    assert rows(again, end, again.latestOffset(end, None)) == [7, 8]


def test_a_task_reads_segments_as_its_rows_are_taken(readers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BATCH_ROWS", 2)
    reader = readers(segment_rows=2, maxOffsetsPerTrigger="100")
    start = reader.initialOffset()
    feed(reader, 0, 6)
    end = reader.latestOffset(start, None)
    first, *others = reader.partitions(start, end)
    first.parts += [part for other in others for part in other.parts]  # as an ordered topic partition has them
    opened: list[str] = []
    read_file = segments.read_file
    monkeypatch.setattr(segments, "read_file", lambda path, s: opened.append(s.name) or read_file(path, s))
    batches = reader.read(first)
    assert (next(batches).num_rows, len(opened)) == (2, 1)
    assert sum(batch.num_rows for batch in batches) == 4


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
    assert reader._collector.spool.segments == [], "waiting cuts no small segments"
    feed(reader, 3, 1)
    end = reader.latestOffset(start, None)
    assert len(rows(reader, start, end)) == 4
    assert reader.latestOffset(end, None) == end
    clock = FakeClock()
    patience = Patience(4, 10.0, clock)
    assert (patience.waits(lambda: 1), patience.waits(lambda: 4), patience.waits(lambda: 1)) == (True, False, True)
    clock.advance(10.0)
    assert (patience.waits(lambda: 1), patience.waits(lambda: 1)) == (False, True)
    assert not Patience(None, 10.0, clock).waits(lambda: 1)


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
    assert rows(reader, start, end) == [0, 1, 2]
    assert time.monotonic() - begun < 50
    feed(reader, 3, 1)
    assert reader.latestOffset(end, None)["seg"] == end["seg"] + 1, "a row that is there is not waited for"
    assert time.monotonic() - begun < 55


def test_the_progress_tells_of_the_lag(readers: Any) -> None:
    reader = readers(segment_rows=2)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    feed(reader, 0, 5)
    found = reader.reportLatestOffset()
    assert found["waiting"]["rows"] == 5
    assert found["waiting"]["bytes"] > 0
    assert (found["seg"], found["inFlight"], found["missing"], found["depth"]) == (2, 0, [], None)
    reader.partitions(start, reader.latestOffset(start, None))
    assert reader.reportLatestOffset()["waiting"] == {"rows": 0, "bytes": 0}


def test_sparks_own_limit_counts_too(readers: Any) -> None:
    class ReadMaxRows:
        max_rows = 3

    reader = readers(segment_rows=1)
    start = reader.initialOffset()
    feed(reader, 0, 10)
    assert len(rows(reader, start, reader.latestOffset(start, ReadMaxRows()))) == 3


@pytest.mark.parametrize(
    ("limits", "last"),
    [(Limits(), 3), (Limits(rows=20), 2), (Limits(rows=5), 1), (Limits(bytes=299), 2), (Limits(25), 2)],
)
def test_a_limit_takes_whole_segments_and_at_least_one(limits: Limits, last: int) -> None:
    assert limits.cut([(1, 10, 100), (2, 10, 100), (3, 10, 100)]) == last
    assert limits.cut([]) is None


def test_old_pyspark_passes_no_position(readers: Any) -> None:
    reader = readers(maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    feed(reader, 0, 3)
    first = reader.latestOffset()
    second = reader.latestOffset()
    assert (rows(reader, start, first), rows(reader, first, second)) == ([0, 1], [2])


def test_commit_moves_segments_away_and_a_new_query_starts_after_them(readers: Any) -> None:
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 2)
    first = reader.latestOffset(start, None)
    feed(reader, 2, 2)
    second = reader.latestOffset(first, None)
    reader.commit(first)
    reader.stop()
    other = readers()  # the checkpoint was deleted, the spool kept
    begin = other.initialOffset()
    assert begin["seg"] == first["seg"]
    assert rows(other, begin, other.latestOffset(begin, None)) == [2, 3], "no loss; what was not committed comes again"
    assert second["seg"] == 2


def test_a_spool_that_took_anothers_place_is_data_loss(readers: Any, tmp_path: Path) -> None:
    reader = readers()
    start = reader.initialOffset()
    feed(reader, 0, 1)
    end = reader.latestOffset(start, None)
    reader.stop()
    (tmp_path / "spool").rename(tmp_path / "gone")
    with pytest.raises(DataLoss, match="not the one of this query's checkpoint"):
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
    with pytest.raises(DataLoss, match="not the one of this query's checkpoint"):
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


def test_a_spool_restored_from_an_older_copy_is_data_loss_and_gives_no_number_twice(readers: Any) -> None:
    reader = readers()
    start = reader.initialOffset()
    ahead = {**start, "seg": 10}
    with pytest.raises(DataLoss, match="older copy"):
        reader.latestOffset(ahead, None)
    reader.stop()
    other = readers(failOnDataLoss="false")
    assert other.latestOffset(ahead, None) == ahead
    feed(other, 0, 2)
    assert rows(other, ahead, other.latestOffset(ahead, None)) == [0, 1]


@pytest.mark.parametrize("retention", ["0", "3600000"])
def test_a_checkpoint_restored_from_an_older_copy_is_told_of(
    readers: Any, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Were all its rows there, it would still give new ones the numbers of batches that a sink has."""
    reader = readers(spoolRetentionMs=retention)
    ends = [reader.initialOffset()]
    for number in range(4):
        feed(reader, number, 1)
        ends.append(reader.latestOffset(ends[-1], None))
        reader.commit(ends[-2])
    reader.stop()
    for ask in (lambda one: one.latestOffset(ends[1], None), lambda one: one.partitions(ends[1], ends[2])):
        again = readers(spoolRetentionMs=retention)
        with pytest.raises(
            DataLoss, match=r"committed up to 3, not 1: the checkpoint is an older copy.*new checkpoint"
        ):
            ask(again)
        again.stop()
    right = readers(spoolRetentionMs=retention)
    assert rows(right, ends[3], ends[4]) == [3]
    right.stop()
    other = readers(spoolRetentionMs=retention, failOnDataLoss="false")
    assert rows(other, ends[1], other.latestOffset(ends[1], None)) == ([3] if retention == "0" else [1, 2, 3])
    assert "older copy" in caplog.text


def test_a_lost_segment_is_data_loss_or_left_out(readers: Any, tmp_path: Path) -> None:
    reader = readers(segment_rows=1)
    start = reader.initialOffset()
    feed(reader, 0, 3)
    end = reader.latestOffset(start, None)
    next((tmp_path / "spool").glob("seg-*2-p*")).unlink()
    with pytest.raises(DataLoss, match="lacks segment 2"):
        reader.partitions(start, end)
    reader.stop()
    assert rows(readers(segment_rows=1, failOnDataLoss="false"), start, end) == [0, 2]


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("elsewhere", ["nothing", "another spool"])
def test_a_directory_the_executor_does_not_see_fails_the_task_and_is_no_loss(
    readers: Any, tmp_path: Path, fail_on_data_loss: str, elsewhere: str
) -> None:
    reader = readers(failOnDataLoss=fail_on_data_loss)
    start = reader.initialOffset()
    feed(reader, 0, 1)
    (partition,) = reader.partitions(start, reader.latestOffset(start, None))
    place = tmp_path / "executor"
    if elsewhere == "another spool":
        other = readers(spoolDir=str(place))
        begin = other.initialOffset()
        feed(other, 7, 1)
        other.latestOffset(begin, None)
    with pytest.raises(SpoolNotVisible, match="visible on this executor"):
        list(reader.read(replace(partition, directory=str(place))))


def test_a_relative_directory_is_the_drivers(readers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = readers(spoolDir="work/spool")
    start = reader.initialOffset()
    feed(reader, 0, 2)
    end = reader.latestOffset(start, None)
    partitions = reader.partitions(start, end)
    monkeypatch.chdir("/")  # an executor's working directory
    copy = pickle.loads(pickle.dumps(reader))
    assert sum(batch.num_rows for partition in partitions for batch in copy.read(partition)) == 2


def test_a_second_query_on_the_spool_is_refused(readers: Any) -> None:
    readers().initialOffset()
    with pytest.raises(SpoolInUse, match="in use by another query"):
        readers().initialOffset()


def test_an_offset_of_another_source_is_refused(readers: Any) -> None:
    with pytest.raises(SpoolError, match="another checkpointLocation"):
        parse_offset({"v": 1, "spool": "u", "epoch": 3})
    assert parse_offset(Offset("u", 3).as_dict()) == Offset("u", 3)


def test_available_now_ends_when_the_backlog_is_read_though_new_messages_come(readers: Any) -> None:
    reader = readers(idleTimeoutMs="150")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed(reader, 0, 2, timestamp_ns=1)
    first = reader.latestOffset(start, None)
    assert rows(reader, start, first) == [0, 1]
    begun, late = time.monotonic(), time.time_ns()
    ended = threading.Event()

    def flow() -> None:
        number = 2
        while not ended.wait(0.01):
            feed(reader, number, 1, timestamp_ns=late)
            number += 1

    flowing = threading.Thread(target=flow)
    flowing.start()
    second = reader.latestOffset(first, None)
    assert time.monotonic() - begun >= 0.1
    assert reader.latestOffset(second, None) == second
    ended.set()
    flowing.join()
    assert rows(reader, first, second)[:1] == [2], "what is here is handed over"


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
    reader = readers(idleTimeoutMs="60000", maxSpoolBytes="4k")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed(reader, 0, 99, timestamp_ns=time.time_ns())
    reader._seen = reader._collector.backlog_seen
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
    reader._unasked = True
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
    reader._unasked = True
    timer = threading.Timer(0.1, lambda: feed(reader, 0, 4, timestamp_ns=1))
    timer.start()
    first = reader.latestOffset()
    timer.join()
    assert len(rows(reader, start, first)) == 3
    assert "AvailableNow with this PySpark" in caplog.text


def test_old_pyspark_goes_on_without_an_nsqd_for_the_query_may_be_a_lasting_one(readers: Any) -> None:
    reader = readers(idleTimeoutMs="50", connectTimeoutMs="100")
    start = reader.initialOffset()
    reader._unasked = True
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
from gnsq_lite.spark import options, places, segments, stream
before = gc.get_threshold()
stream.settle_process()
print(gc.get_threshold() == before, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.sql.streaming.python_streaming_source_runner")
stream.settle_process()
print(gc.get_threshold()[0] >= 50_000, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["True", "False", "True", "True"]
