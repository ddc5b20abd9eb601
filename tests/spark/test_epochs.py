"""Receivers in the tasks: two attempts of one task give the same rows; nothing unpublished is finished."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.spark import epochs
from gnsq_lite.spark.epochlog import End, EpochLog, Plan, forget_epochs, plan_epoch
from gnsq_lite.spark.epochs import EpochPartition, EpochTask, NsqEpochReader, slot_partitions
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.places import open_spool
from gnsq_lite.spark.schema import to_batch
from gnsq_lite.spark.segments import SegmentDamaged
from gnsq_lite.spark.shelves import DirectoryShelf
from gnsq_lite.spark.spoolmeta import DataLoss, SpoolError, SpoolInUse, SpoolNotVisible
from tests.spark.fakes import Crash, CrashingFiles, FakeMessage, FakeReceiver, FullDisk


def options(directory: Path, **more: str) -> SourceOptions:
    base = {"topic": "t", "channel": "c", "spoolDir": str(directory), "nsqdTCPAddresses": "n", "epochMs": "100"}
    return parse(SourceOptions, {**base, "receiver": "executors", "lockWaitMs": "0", **more})


class Feeding(FakeReceiver):
    """Delivers its messages as soon as it is started."""

    def __init__(self, messages: list[FakeMessage]) -> None:
        super().__init__()
        self.messages = messages

    def start(self, on_messages: Any) -> None:
        super().start(on_messages)
        on_messages(self.messages)


def task(directory: Path, messages: list[FakeMessage], files: Files | None = None, **more: str) -> EpochTask:
    partition = EpochPartition(1, 0, 2, 0, "")
    plan_epoch(DirectoryShelf(directory), 1, Plan(2, 0))
    return EpochTask(
        EpochLog(DirectoryShelf(directory, files), 1, 0), options(directory, **more), partition, Feeding(messages)
    )


def numbers(made: EpochTask) -> list[int]:
    return [int(body) for batch in made.rows() for body in batch.column("body").to_pylist()]


def messages(first: int, count: int) -> list[FakeMessage]:
    return [FakeMessage(n, b"%d" % n) for n in range(first, first + count)]


@pytest.mark.rule("PIPE-3")
def test_a_task_that_runs_again_yields_what_was_published_and_receives_nothing_more(tmp_path: Path) -> None:
    taken, later = messages(0, 5), messages(5, 5)
    assert numbers(task(tmp_path, taken)) == [0, 1, 2, 3, 4]
    assert {m.answer for m in taken} == {"FIN"}
    assert numbers(task(tmp_path, later)) == [0, 1, 2, 3, 4]
    assert {m.answer for m in later} == {None}


@pytest.mark.rule("PIPE-2")
def test_an_attempt_that_outlives_its_epoch_finishes_nothing(tmp_path: Path) -> None:
    class Late(Files):
        """The other attempt is quicker, and its batch is committed: the numbers are free again."""

        def link(self, source: Path, target: Path) -> None:
            assert numbers(task(tmp_path, messages(10, 3))) == [10, 11, 12]
            forget_epochs(DirectoryShelf(tmp_path), 1)
            super().link(source, target)

    taken = messages(0, 3)
    with pytest.raises(SpoolError, match="epoch 1 was committed without this attempt"):
        numbers(task(tmp_path, taken, Late()))
    assert {m.answer for m in taken} == {"REQ"}
    forget_epochs(DirectoryShelf(tmp_path), 1)
    assert list(tmp_path.iterdir()) == [], "its chunk does not stay"


@pytest.mark.rule("PIPE-2")
def test_a_plan_goes_before_the_chunks(tmp_path: Path) -> None:
    removed: list[list[str]] = []

    class Watched(DirectoryShelf):
        def remove(self, names: list[str]) -> None:
            removed.append(names)
            super().remove(names)

        def names(self) -> list[str]:
            return [name for name in super().names() if "plan" not in name]  # listed late

    numbers(task(tmp_path, messages(0, 3)))
    forget_epochs(Watched(tmp_path), 1)
    assert [len(names) for names in removed] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_attempt_was_writing_goes_with_its_epoch(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        numbers(task(tmp_path, messages(0, 3), CrashingFiles(3)))
    (left,) = tmp_path.glob(".e*")
    numbers(task(tmp_path, messages(0, 3)))
    forget_epochs(DirectoryShelf(tmp_path), 1)
    assert list(tmp_path.iterdir()) == [left]
    forget_epochs(DirectoryShelf(tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("PIPE-2")
def test_nothing_is_finished_before_it_is_published(tmp_path: Path) -> None:
    class Late(Files):
        def link(self, source: Path, target: Path) -> None:
            assert {m.answer for m in taken} <= {None}
            super().link(source, target)

    taken = messages(0, 3)
    made = task(tmp_path, taken, Late())
    first = next(made.rows())
    assert first.num_rows == 3
    assert {m.answer for m in taken} == {"FIN"}


def test_a_chunk_that_cannot_be_published_goes_back_at_once(tmp_path: Path) -> None:
    taken = messages(0, 3)
    with pytest.raises(OSError, match="No space left"):
        numbers(task(tmp_path, taken, FullDisk(10)))
    assert {m.answer for m in taken} == {"REQ"}
    assert not list(tmp_path.glob(".e*")), "it takes no room"


def test_a_link_whose_answer_was_lost_has_made_the_chunk(tmp_path: Path) -> None:
    class Lost(Files):
        """As a network file system: the call is sent again, and finds what it has made itself."""

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            super().link(source, target)

    taken = messages(0, 3)
    assert numbers(task(tmp_path, taken, Lost())) == [0, 1, 2]
    assert {m.answer for m in taken} == {"FIN"}


def test_an_attempt_that_died_after_publishing_is_carried_on(tmp_path: Path) -> None:
    log = EpochLog(DirectoryShelf(tmp_path), 1, 0)
    assert log.publish(0, [to_batch(messages(0, 2))])  # type: ignore[arg-type]
    assert numbers(task(tmp_path, messages(2, 2))) == [0, 1, 2, 3]


def test_a_chunk_another_attempt_published_first_counts_and_ones_own_goes_back(tmp_path: Path) -> None:
    mine = messages(10, 2)
    made = task(tmp_path, mine)
    log = EpochLog(DirectoryShelf(tmp_path), 1, 0)

    class Overtaken(Files):
        def link(self, source: Path, target: Path) -> None:
            if target.name.endswith("c000000.seg") and not target.exists():
                log.publish(0, [to_batch(messages(0, 2))])  # type: ignore[arg-type]
                log.finish(1, End(2, 0, True))
            super().link(source, target)

    made._log._shelf = DirectoryShelf(tmp_path, Overtaken())
    assert numbers(made) == [0, 1]
    assert {m.answer for m in mine} == {"REQ"}


def test_nobody_publishes_behind_the_end(tmp_path: Path) -> None:
    log = EpochLog(DirectoryShelf(tmp_path), 1, 0)
    assert log.finish(0, End(0, 0, True))
    assert not log.publish(0, [to_batch(messages(0, 1))])  # type: ignore[arg-type]
    zombie = messages(0, 1)
    assert numbers(task(tmp_path, zombie)) == []


def test_two_attempts_at_once_yield_the_same_rows_and_lose_none(tmp_path: Path) -> None:
    for round_number in range(10):
        directory = tmp_path / str(round_number)
        directory.mkdir()
        ours, theirs = messages(0, 50), messages(100, 50)
        results: dict[int, list[int]] = {}

        def run(index: int, given: list[FakeMessage], where: Path, into: dict[int, list[int]]) -> None:
            into[index] = numbers(task(where, given))

        threads = [
            threading.Thread(target=run, args=(index, given, directory, results))
            for index, given in enumerate((ours, theirs))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results[0] == results[1]
        finished = [int(m.body) for m in ours + theirs if m.answer == "FIN"]
        assert sorted(finished) == sorted(results[0]), "finished is exactly what was published"
        for given in (ours, theirs):  # an attempt that came after the end received nothing
            answers = {m.answer for m in given}
            assert answers == {None} or answers <= {"FIN", "REQ"}, "nothing stays in flight"


def test_a_reader_that_stops_early_leaves_nothing_in_flight(tmp_path: Path) -> None:
    given = messages(0, 3)
    made = task(tmp_path, given)
    rows = made.rows()
    next(rows)
    made._receiver.take(FakeMessage(9))  # type: ignore[attr-defined]
    waiting = made._queue[0]
    rows.close()
    assert waiting.answer == "REQ"  # type: ignore[attr-defined]
    assert made._receiver.calls[-1] == "stop"  # type: ignore[attr-defined]


def test_an_epochs_rows_are_limited(tmp_path: Path) -> None:
    given = messages(0, 10)
    assert len(numbers(task(tmp_path, given, maxOffsetsPerTrigger="8"))) == 4, "8 rows over 2 receivers"
    assert [m.answer for m in given].count("REQ") == 6


def test_a_damaged_chunk_is_an_error_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for first in (0, 2):
        EpochLog(DirectoryShelf(tmp_path), 1, 0).publish(first // 2, [to_batch(messages(first, 2))])  # type: ignore[arg-type]
    assert numbers(task(tmp_path, [])) == [0, 1, 2, 3]
    path = min(tmp_path.glob("e*.seg"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SegmentDamaged, match="damaged"):
        numbers(task(tmp_path, []))
    assert numbers(task(tmp_path, [], failOnDataLoss="false")) == [2, 3]
    assert "damaged; failOnDataLoss=false" in caplog.text
    assert EpochLog(DirectoryShelf(tmp_path), 1, 0).end() is not None, "AvailableNow asks"


@pytest.mark.rule("PIPE-3")
def test_a_chunk_that_is_gone_is_told_though_others_took_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EpochLog(DirectoryShelf(tmp_path), 1, 0)
    for number in range(3):
        assert log.publish(number, [to_batch(messages(2 * number, 2))])  # type: ignore[arg-type]
    assert log.finish(3, End(6, 0, True))
    assert numbers(task(tmp_path, [])) == [0, 1, 2, 3, 4, 5]
    sorted(tmp_path.glob("e*.seg"))[1].unlink()
    later = messages(6, 1)
    with pytest.raises(DataLoss, match="epoch 1 ended with 6 rows in slot 0, and has 5 now"):
        numbers(task(tmp_path, later))
    assert later[0].answer == "FIN", "it was published, and is there when the batch runs again"
    assert numbers(task(tmp_path, [], failOnDataLoss="false")) == [0, 1, 6, 4, 5]
    assert "has 5 now; failOnDataLoss=false" in caplog.text


def test_the_end_of_an_epoch_is_found_without_its_rows(tmp_path: Path) -> None:
    """AvailableNow asks for it in the driver: on a store it would fetch all that its executors have read."""

    class Counting(DirectoryShelf):
        read_names: ClassVar[list[str]] = []

        def read(self, name: str) -> Any:
            self.read_names.append(name)
            return super().read(name)

    shelf = Counting(tmp_path)
    log, other = EpochLog(shelf, 1, 0), EpochLog(shelf, 1, 1)
    assert log.end() is None
    for number in range(12):
        log.publish(number, [to_batch(messages(number, 1))])  # type: ignore[arg-type]
    assert log.end() is None
    assert other.finish(0, End(0, 0, True))
    shelf.read_names.clear()
    assert log.finish(12, End(12, 0, True))
    assert log.end() == End(12, 0, True, [])
    assert shelf.read_names == ["e0000000000000001-s0000-c000012.seg"]


def test_a_plan_holds_when_the_batch_runs_again(tmp_path: Path) -> None:
    assert plan_epoch(DirectoryShelf(tmp_path), 1, Plan(2, 5)) == Plan(2, 5)
    assert plan_epoch(DirectoryShelf(tmp_path), 1, Plan(8, 9)) == Plan(2, 5)
    EpochLog(DirectoryShelf(tmp_path), 1, 1).finish(0, End(0, 0, True))
    forget_epochs(DirectoryShelf(tmp_path), 1)
    assert list(tmp_path.glob("e*")) == []


def test_each_named_topic_partition_has_one_slot() -> None:
    given = options(Path("/x"), partitions="0,1,2,5")
    slots = [slot_partitions(given, EpochPartition(1, slot, 2, 0, "")) for slot in range(2)]
    assert slots == [(0, 2), (1, 5)]
    with pytest.raises(OptionError, match="partitions named"):
        NsqEpochReader(options(Path("/x"), ordered="true"))


def test_a_slot_without_a_partition_ends_at_once(tmp_path: Path) -> None:
    made = EpochTask(
        EpochLog(DirectoryShelf(tmp_path), 1, 1),
        options(tmp_path, partitions="0"),
        EpochPartition(1, 1, 2, 0, ""),
        Feeding(messages(0, 1)),
    )
    assert numbers(made) == []
    assert EpochLog(DirectoryShelf(tmp_path), 1, 1).end() == End(0, 0, True, [], math.inf), "it waits for nobody"


def test_the_driver_counts_epochs_and_cleans_up(tmp_path: Path) -> None:
    reader = NsqEpochReader(options(tmp_path))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert (start["epoch"], end["epoch"]) == (0, 1)
    assert [(p.epoch, p.slot) for p in reader.partitions(start, end)] == [(1, 0), (1, 1)]  # type: ignore[attr-defined]
    with pytest.raises(SpoolInUse):
        NsqEpochReader(options(tmp_path)).initialOffset()
    reader.commit(end)
    assert list(tmp_path.glob("e*")) == []
    reader.stop()
    again = NsqEpochReader(options(tmp_path))
    assert again.initialOffset()["epoch"] == 1
    with pytest.raises(DataLoss):
        again.latestOffset({**start, "spool": "other"}, None)
    again.stop()


@pytest.mark.rule("PIPE-3")
def test_a_checkpoint_that_is_not_this_spools_is_data_loss_or_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = NsqEpochReader(options(tmp_path))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    with pytest.raises(DataLoss, match="not the one of this query's checkpoint"):
        reader.partitions({**start, "spool": "other"}, end)  # a PySpark before 4.2 tells of it here first
    reader.partitions(start, end)
    reader.commit(end)
    with pytest.raises(DataLoss, match="the checkpoint is an older copy"):
        reader.partitions(start, end)
    reader.stop()
    lenient = NsqEpochReader(options(tmp_path, failOnDataLoss="false"))
    assert lenient.partitions(start, end) == []
    assert "committed up to 1, not 0: the checkpoint is an older copy" in caplog.text
    assert lenient.latestOffset(start, None) == {**end, "epoch": 2}
    lenient.stop()


def test_available_now_ends_after_epochs_without_backlog(tmp_path: Path) -> None:
    reader = NsqEpochReader(options(tmp_path, idleTimeoutMs="200"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, None)
    reader.partitions(start, first)
    for slot, backlog in ((0, 0), (1, 4)):
        EpochLog(DirectoryShelf(tmp_path), 1, slot).finish(0, End(4, backlog, True, silent=1.0))
    end = reader.latestOffset(first, None)
    for epoch in (2, 3):
        assert end["epoch"] == epoch, "an nsqd that has only just been reached has sent nothing yet"
        reader.partitions(first, end)
        for slot in range(2):
            EpochLog(DirectoryShelf(tmp_path), epoch, slot).finish(0, End(3, 0, True, silent=0.1))
        first, end = end, reader.latestOffset(end, None)
    assert end == first
    reader.stop()


def test_available_now_goes_on_after_an_epoch_that_was_not_read_to_its_end(tmp_path: Path) -> None:
    """foreachBatch with a limit(): some slots stopped early, others never ran."""
    reader = NsqEpochReader(options(tmp_path, idleTimeoutMs="200"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    for _ in range(3):
        end = reader.latestOffset(start, None)
        assert end != start
        reader.partitions(start, end)
        start = end
    EpochLog(DirectoryShelf(tmp_path), 3, 0).finish(0, End(0, 0, True, silent=9.0))
    assert reader.latestOffset(start, None) != start
    EpochLog(DirectoryShelf(tmp_path), 3, 1).finish(0, End(0, 0, True, silent=9.0))
    assert reader.latestOffset(start, None) == start
    reader.stop()


def test_a_task_tells_of_an_nsqd_that_is_away_and_of_its_silence(tmp_path: Path) -> None:
    made = task(tmp_path, messages(0, 1))
    receiver = made._receiver
    receiver.connected, receiver.away = False, ["gone:4150"]  # type: ignore[attr-defined]
    rows = made.rows()
    next(rows)
    receiver.connected = True  # type: ignore[attr-defined]
    assert list(rows) == []
    end = EpochLog(DirectoryShelf(tmp_path), 1, 0).end()
    assert end is not None
    assert (end.connected, end.missing) == (True, ["gone:4150"])
    assert 0 < end.silent < 60


def test_an_end_that_an_older_version_wrote_is_understood(tmp_path: Path) -> None:
    log = EpochLog(DirectoryShelf(tmp_path), 1, 0)
    assert log._create(0, b'GNSQEND1{"rows": 4, "backlog": 0, "connected": true}')
    assert log.end() == End(4, 0, True)


def test_a_task_counts_its_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "CHUNK_SECONDS", 0.01)
    given = [FakeMessage(n, b"%d" % n, timestamp_ns=n) for n in range(4)]
    partition = EpochPartition(1, 0, 1, backlog_until_ns=1, spool="")
    plan_epoch(DirectoryShelf(tmp_path), 1, Plan(1, 1))
    made = EpochTask(EpochLog(DirectoryShelf(tmp_path), 1, 0), options(tmp_path), partition, Feeding(given))
    begun = time.monotonic()
    assert numbers(made) == [0, 1, 2, 3]
    assert time.monotonic() - begun >= 0.1
    end = EpochLog(DirectoryShelf(tmp_path), 1, 0).end()
    assert end is not None
    assert (end.rows, end.backlog, end.connected) == (4, 2, True)


@pytest.mark.rule("PIPE-2")
def test_a_task_that_does_not_see_the_spool_receives_nothing(tmp_path: Path) -> None:
    reader = NsqEpochReader(options(tmp_path))
    start = reader.initialOffset()
    (partition, _) = reader.partitions(start, reader.latestOffset(start, None))
    reader.stop()
    with pytest.raises(SpoolNotVisible, match="another spool"):
        reader.read(replace(partition, spool="the driver's"))


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("sealed", [True, False])
def test_a_spool_where_rows_of_the_other_receiver_wait_is_refused(tmp_path: Path, sealed: bool) -> None:
    driver = open_spool(tmp_path, options(tmp_path), Files())
    driver.append([(-1, to_batch(messages(0, 2)))])
    end = driver.roll() if sealed else 1
    driver.close()
    for _ in range(2):  # the lock is free again
        with pytest.raises(SpoolError, match="receiver=driver, acknowledged to nsqd and not committed"):
            NsqEpochReader(options(tmp_path)).initialOffset()
    driver = open_spool(tmp_path, options(tmp_path), Files())
    driver.commit(end)
    driver.close()
    reader = NsqEpochReader(options(tmp_path))
    start = reader.initialOffset()
    assert start["epoch"] == end, "what is committed is in nobody's way"
    later = reader.latestOffset(start, None)
    reader.partitions(start, later)
    reader.stop()
    with pytest.raises(SpoolError, match="receiver=executors, acknowledged to nsqd and not committed"):
        open_spool(tmp_path, options(tmp_path), Files())
    reader = NsqEpochReader(options(tmp_path))
    reader.partitions(start, later)
    reader.commit(later)
    reader.stop()
    open_spool(tmp_path, options(tmp_path), Files()).close()
