"""Snapshots without a Spark session: made once, taken over after a crash, dropped."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.errors import ConnectError
from gnsq_lite.spark.batch import NsqBatchReader, SnapshotExpired, drop_snapshot, is_complete, snapshots
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.places import open_spool
from gnsq_lite.spark.schema import to_batch
from gnsq_lite.spark.spoolmeta import DataLoss, SpoolError
from tests.spark.fakes import FakeMessage, FakeReceiver


class Backlog(FakeReceiver):
    """Delivers its messages as soon as it is started."""

    started = 0

    def __init__(self, messages: list[FakeMessage]) -> None:
        super().__init__()
        self.messages = messages

    def start(self, on_messages: Any) -> None:
        Backlog.started += 1
        if self.messages:
            on_messages(self.messages)


def options(directory: Path, **more: str) -> SourceOptions:
    base = {"topic": "t", "channel": "c", "spoolDir": str(directory), "nsqdTCPAddresses": "n", "idleTimeoutMs": "100"}
    return parse(SourceOptions, {**base, **more})


class Reader(NsqBatchReader):
    """With messages by hand."""

    messages: list[FakeMessage]

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._make_receiver: Any = lambda: Backlog(self.messages)


def reader(directory: Path, name: str, first: int = 0, count: int = 0, **more: str) -> Reader:
    made = Reader(options(directory, snapshot=name, **more))
    made.messages = [FakeMessage(n, b"%d" % n) for n in range(first, first + count)]
    return made


def rows(made: Reader) -> list[int]:
    partitions = made.partitions()
    made.messages = []
    copy = pickle.loads(pickle.dumps(NsqBatchReader(made._options)))
    return [int(b) for p in partitions for batch in copy.read(p) for b in batch.column("body").to_pylist()]


@pytest.mark.rule("PIPE-3")
def test_a_snapshot_that_lost_a_file_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    assert rows(reader(tmp_path, "a", 0, 5, segmentMaxRecords="2")) == [0, 1, 2, 3, 4]
    sorted((tmp_path / "snapshot-a").glob("seg-*"))[1].unlink()
    with pytest.raises(DataLoss, match="was made of 5 rows; the files of 3 are there"):
        reader(tmp_path, "a").partitions()


@pytest.mark.rule("PIPE-3")
def test_a_snapshot_is_drained_once_and_read_often(tmp_path: Path) -> None:
    before = Backlog.started
    assert rows(reader(tmp_path, "a", 0, 5)) == [0, 1, 2, 3, 4]
    assert rows(reader(tmp_path, "a", 5, 5)) == [0, 1, 2, 3, 4]
    assert Backlog.started == before + 1
    assert snapshots(tmp_path) == {"a": 5}


def test_every_message_of_a_snapshot_is_finished_and_the_rest_goes_back(tmp_path: Path) -> None:
    made = reader(tmp_path, "a", 0, 5, maxMessages="3")
    given = made.messages
    assert rows(made) == [0, 1, 2]
    assert [m.answer for m in given] == ["FIN"] * 3 + ["REQ"] * 2


def test_a_snapshot_that_its_maker_left_half_full_is_only_filled_up(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "snapshot-a", options(tmp_path), Files())
    spool.append([(-1, to_batch([FakeMessage(n, b"%d" % n) for n in range(2)]))])
    spool.close()
    made = reader(tmp_path, "a", 2, 5, maxMessages="3")
    given = made.messages
    assert rows(made) == [0, 1, 2]
    assert [m.answer for m in given] == ["FIN"] + ["REQ"] * 4


def test_a_snapshot_that_is_full_says_so_and_leaves_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = reader(tmp_path, "a", 0, 99, maxSpoolBytes="4k", idleTimeoutMs="60000")
    assert rows(made) == list(range(99))
    assert "has maxSpoolBytes; the rest stays in nsqd" in caplog.text


def test_inline_partitions_carry_their_rows(tmp_path: Path) -> None:
    made = reader(tmp_path, "a", 0, 3, spoolTransfer="inline")
    partitions = made.partitions()
    for path in (tmp_path / "snapshot-a").glob("seg-*"):
        path.unlink()
    assert sum(batch.num_rows for p in partitions for batch in made.read(p)) == 3


@pytest.mark.rule("PIPE-2")
def test_a_snapshot_whose_maker_died_is_finished_under_its_name_and_others_are_told_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool(tmp_path / "snapshot-died", options(tmp_path), Files())
    spool.append([(-1, to_batch([FakeMessage(n, b"%d" % n) for n in range(4)]))])
    spool.close()  # as a crash leaves it: finished at nsqd, not sealed, not DONE
    assert rows(reader(tmp_path, "next", 4, 2)) == [4, 5]
    assert "snapshot-died was not finished" in caplog.text
    assert rows(reader(tmp_path, "died", 6, 1)) == [0, 1, 2, 3, 6]


def test_a_snapshot_says_that_it_empties_the_channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows(reader(tmp_path, "a", 0, 1))
    assert "takes what channel t/c holds out of nsqd" in caplog.text
    caplog.clear()
    rows(reader(tmp_path, "a"))
    assert caplog.text == ""


def test_an_old_snapshot_loses_its_rows_when_another_is_made_and_keeps_its_name(tmp_path: Path) -> None:
    for name in ("old", "young"):
        assert rows(reader(tmp_path, name, 0, 3)) == [0, 1, 2]
    rows(reader(tmp_path, "other", 0, 1, topic="u"))
    week = 7 * 86400
    for name, age in (("old", week + 60), ("young", week - 600), ("other", week + 60)):
        done = tmp_path / f"snapshot-{name}" / "DONE"
        os.utime(done, (time.time() - age, time.time() - age))
    rows(reader(tmp_path, "never", 0, 1, snapshotRetentionMs="0"))
    assert set(snapshots(tmp_path)) == {"old", "young", "other", "never"}
    rows(reader(tmp_path, "next", 0, 1))
    assert set(snapshots(tmp_path)) == {"young", "other", "never", "next"}
    assert list((tmp_path / "snapshot-old").glob("seg-*")) == []
    with pytest.raises(SnapshotExpired, match="older than snapshotRetentionMs"):
        rows(reader(tmp_path, "old", 5, 1))
    drop_snapshot(tmp_path, "old")
    assert rows(reader(tmp_path, "old", 5, 1)) == [5]


def test_a_snapshot_is_no_snapshot_where_an_nsqd_is_away_unless_that_is_wanted(tmp_path: Path) -> None:
    made = reader(tmp_path, "a", 0, 2, connectTimeoutMs="50")
    receiver = made._make_receiver()
    receiver.away = ["gone:4150"]
    made._make_receiver = lambda: receiver
    with pytest.raises(ConnectError, match=r"gone:4150.*onMissingNsqd=warn"):
        made.partitions()
    assert not is_complete(tmp_path / "snapshot-a")
    again = reader(tmp_path, "a", 2, 1, connectTimeoutMs="50", onMissingNsqd="warn")
    receiver.messages = again.messages
    again._make_receiver = lambda: receiver
    assert rows(again) == [0, 1, 2]


def test_a_snapshot_that_was_filled_for_too_short_a_time_is_an_error(tmp_path: Path) -> None:
    made = reader(tmp_path, "a", 0, 0, maxWaitMs="20")
    receiver = made._make_receiver()
    receiver.connected = False
    made._make_receiver = lambda: receiver
    with pytest.raises(ConnectError):
        made.partitions()
    assert not is_complete(tmp_path / "snapshot-a")


def test_a_snapshot_in_the_making_cannot_be_dropped_a_complete_one_can(tmp_path: Path) -> None:
    rows(reader(tmp_path, "a", 0, 1))
    open_spool(tmp_path / "snapshot-b", options(tmp_path), Files()).close()
    with pytest.raises(SpoolError, match="no complete snapshot"):
        drop_snapshot(tmp_path, "b")
    drop_snapshot(tmp_path, "a")
    assert not is_complete(tmp_path / "snapshot-a")
    assert not (tmp_path / "snapshot-a").exists()
