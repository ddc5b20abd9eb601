"""Snapshots without a Spark session: made once, taken over after a crash, dropped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.spark.batch import NsqBatchReader, drop_snapshot, is_complete, snapshots
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.spool import SpoolError
from gnsq_lite.spark.stream import open_spool
from tests.spark.fakes import FakeMessage, FakeReceiver


class Backlog(FakeReceiver):
    """Delivers its messages as soon as it is started."""

    started = 0

    def __init__(self, messages: list[FakeMessage]) -> None:
        super().__init__()
        self.messages = messages

    def start(self, on_message: Any) -> None:
        Backlog.started += 1
        for message in self.messages:
            on_message(message)


def options(directory: Path, **more: str) -> SourceOptions:
    base = {"topic": "t", "channel": "c", "spoolDir": str(directory), "nsqdTCPAddresses": "n", "idleTimeoutMs": "100"}
    return parse(SourceOptions, {**base, **more})


class Reader(NsqBatchReader):
    """With messages by hand."""

    messages: list[FakeMessage]

    def _make_receiver(self) -> Any:
        return Backlog(self.messages)


def reader(directory: Path, name: str, first: int = 0, count: int = 0, **more: str) -> Reader:
    made = Reader(options(directory, **more), name)
    made.messages = [FakeMessage(n, b"%d" % n) for n in range(first, first + count)]
    return made


def rows(made: Reader) -> list[int]:
    partitions = made.partitions()
    made.messages = []
    copy = pickle.loads(pickle.dumps(NsqBatchReader(made._options, "x")))
    return [int(b) for p in partitions for batch in copy.read(p) for b in batch.column("body").to_pylist()]


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


def test_inline_partitions_carry_their_rows(tmp_path: Path) -> None:
    made = reader(tmp_path, "a", 0, 3, spoolTransfer="inline")
    partitions = made.partitions()
    for path in (tmp_path / "snapshot-a").glob("seg-*"):
        path.unlink()
    assert sum(batch.num_rows for p in partitions for batch in made.read(p)) == 3


@pytest.mark.rule("PIPE-2")
def test_what_a_maker_that_died_had_acknowledged_is_taken_over(tmp_path: Path) -> None:
    from gnsq_lite.spark.schema import to_batch

    directory = tmp_path / "snapshot-died"
    spool = open_spool(directory, options(tmp_path), Files())
    spool.append([(-1, to_batch([FakeMessage(n, b"%d" % n) for n in range(4)]))])
    spool.close()  # as a crash leaves it: finished at nsqd, not sealed, not DONE
    assert rows(reader(tmp_path, "next", 4, 2)) == [0, 1, 2, 3, 4, 5]
    assert not directory.exists()


def test_another_topics_or_a_living_makers_snapshot_is_left_alone(tmp_path: Path) -> None:
    other = open_spool(tmp_path / "snapshot-other", options(tmp_path, topic="u"), Files())
    other.close()
    living = open_spool(tmp_path / "snapshot-living", options(tmp_path), Files())
    assert rows(reader(tmp_path, "mine", 0, 1)) == [0]
    assert (tmp_path / "snapshot-other").exists()
    assert (tmp_path / "snapshot-living").exists()
    living.close()


def test_a_snapshot_in_the_making_cannot_be_dropped_a_complete_one_can(tmp_path: Path) -> None:
    rows(reader(tmp_path, "a", 0, 1))
    open_spool(tmp_path / "snapshot-b", options(tmp_path), Files()).close()
    with pytest.raises(SpoolError, match="no complete snapshot"):
        drop_snapshot(tmp_path, "b")
    drop_snapshot(tmp_path, "a")
    assert not is_complete(tmp_path / "snapshot-a")
    assert not (tmp_path / "snapshot-a").exists()
