"""Copies are recognised however late they come; what is new is never taken for one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording import known as module
from gnsq_lite.recording.files import Files, Folder
from gnsq_lite.recording.known import DedupIndex
from tests.recording.fakes import Crash, CrashingFiles, FakeMessage, FullDisk

HOUR = 3600 * 10**9


def batch(*numbers: int, at: int | None = None, nsqd: str = "n:4150", attempts: int = 1) -> pa.RecordBatch:
    return to_batch([FakeMessage(n, b"%d" % n, nsqd=nsqd, attempts=attempts, timestamp_ns=at) for n in numbers])


def opened(directory: Path, most_rows: int = 10**6, files: Files | None = None) -> DedupIndex:
    known = DedupIndex(Folder(directory / "ids", files), most_rows)
    known.open()
    return known


def new(known: DedupIndex, given: pa.RecordBatch, partition: int = -1) -> list[int]:
    return [int(body) for body in known.fresh(partition, given).column("body").to_pylist()]


@pytest.mark.parametrize("where", ["memory", "file", "file read again"])
def test_a_copy_is_dropped_whatever_its_attempts_and_what_is_new_is_not(tmp_path: Path, where: str) -> None:
    known = opened(tmp_path)
    known.add(-1, batch(*range(0, 100, 2)))
    if where != "memory":
        known.flush(1)
    if where == "file read again":
        known = opened(tmp_path)
        assert known.rows == 50
    assert new(known, batch(*range(100))) == list(range(1, 100, 2)), "late ones of the same time are new"
    assert new(known, batch(4, attempts=2)) == []
    assert new(known, batch(4, 200, 201)) == [200, 201]
    assert known.dropped == 52


def test_a_row_a_batch_has_twice_is_kept_once(tmp_path: Path) -> None:
    assert new(opened(tmp_path), batch(5, 6, 5)) == [5, 6]


def test_the_same_id_of_another_nsqd_or_another_time_is_another_message(tmp_path: Path) -> None:
    known = opened(tmp_path)
    known.add(-1, batch(1, 2, at=HOUR))
    assert new(known, batch(1, at=HOUR, nsqd="other:4150")) == [1]
    assert new(known, batch(1, at=HOUR - 10**6)) == [1]
    both = to_batch([FakeMessage(1, b"1", nsqd="n:4150", timestamp_ns=HOUR), FakeMessage(1, b"2", timestamp_ns=HOUR)])
    assert new(known, both) == [2]


def test_a_topic_partition_keeps_its_ids_when_its_leader_moves(tmp_path: Path) -> None:
    known = opened(tmp_path)
    known.add(3, batch(1, nsqd="first:4150"))
    assert new(known, batch(1, nsqd="second:4150"), partition=3) == []
    assert new(known, batch(1, nsqd="second:4150"), partition=4) == [1]


def test_what_is_newer_than_all_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = opened(tmp_path)
    known.add(-1, batch(*range(10)))
    monkeypatch.setattr(known, "_found", lambda *_: pytest.fail("looked up"))
    assert new(known, batch(*range(10, 20))) == list(range(10, 20))


def test_a_backlog_among_new_messages_reads_few_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams of publish times, an hour apart: a suspect of the older is not sought among the newer."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 100)
    known = opened(tmp_path)
    for step in range(20):
        old = [FakeMessage(n, timestamp_ns=HOUR + n * 10**6) for n in range(step * 50, step * 50 + 50)]
        late = [FakeMessage(10**6 + m.timestamp_ns, timestamp_ns=m.timestamp_ns + HOUR) for m in old]
        known.add(-1, to_batch(old + late))
        known.flush(step + 1)
    loads: list[Any] = []
    load = module.Chunk.load
    monkeypatch.setattr(module.Chunk, "load", lambda chunk: (loads.append(chunk), load(chunk))[1])
    assert new(known, to_batch([FakeMessage(1000, b"7", timestamp_ns=HOUR + 1000 * 10**6)])) == [7]
    assert len(loads) <= 2
    assert new(known, to_batch([FakeMessage(500, b"7", timestamp_ns=HOUR + 500 * 10**6)])) == []


def test_memory_and_disk_are_bounded_and_the_newest_rows_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_ROWS", 1000)
    monkeypatch.setattr(module, "FILE_ROWS", 1000)
    known = opened(tmp_path, most_rows=5000)
    for at in range(0, 20_000, 100):
        known.add(-1, batch(*range(at, at + 100)))
        if known.is_due:
            known.flush(at)
    assert 4000 <= known.rows <= 6000
    assert len(list((tmp_path / "ids").iterdir())) <= 6
    assert new(known, batch(*range(16_000, 20_100))) == list(range(20_000, 20_100))
    assert new(known, batch(17)) == [17], "older than the bound: delivered, for it is not known"


def test_small_files_are_joined(tmp_path: Path) -> None:
    known = opened(tmp_path)
    for step in range(30):
        known.add(-1, batch(step))
        known.flush(step + 1)
    assert len(list((tmp_path / "ids").iterdir())) == 1
    assert opened(tmp_path).rows == 30


def test_a_key_takes_few_bytes_of_the_disk(tmp_path: Path) -> None:
    rng = random.Random(1)
    known = opened(tmp_path)
    at = 1_700_000_000 * 10**9
    numbers = []
    for sequence in range(50_000):  # ids as nsqd makes them: time in units of about a millisecond, node, sequence
        at += rng.randrange(100_000)
        numbers.append(FakeMessage(((at >> 20) << 22) | (77 << 12) | sequence % 4096, timestamp_ns=at))
    known.add(-1, to_batch(numbers))
    known.flush(1)
    (file,) = (tmp_path / "ids").iterdir()
    assert file.stat().st_size / 50_000 < 12, "the bound the documentation states"


def test_a_crash_at_any_step_of_writing_leaves_what_was_known(tmp_path: Path) -> None:
    for at in range(40):
        directory = tmp_path / str(at)
        known = opened(directory)
        known.add(-1, batch(*range(10)))
        known.flush(1)
        files = CrashingFiles(at)
        again = opened(directory, files=files)
        again.add(-1, batch(*range(10, 20)))
        try:
            again.flush(2)
        except Crash:
            after = opened(directory)
            number = after._files[-1].number
            if number < 2:  # the segments are there still, and are added again
                after.add(-1, batch(*range(10, 20)))
            assert new(after, batch(*range(21))) == [20], f"after a crash at step {at}"
        else:
            assert at > 4
            return
    pytest.fail("it never ended without a crash")


def test_a_disk_that_is_full_changes_nothing(tmp_path: Path) -> None:
    disk = FullDisk(10)
    known = opened(tmp_path, files=disk)
    known.add(-1, batch(1))
    with pytest.raises(OSError, match="No space"):
        known.flush(1)
    assert new(known, batch(1, 2)) == [2]
    disk.room = 10**6
    known.flush(1)
    assert new(opened(tmp_path), batch(1, 2)) == [2]


@pytest.mark.parametrize("damage", ["head", "chunk", "name"])
def test_a_damaged_file_is_told_and_costs_no_message(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = opened(tmp_path)
    known.add(-1, batch(1))
    known.flush(1)
    (path,) = (tmp_path / "ids").iterdir()
    data = bytearray(path.read_bytes())
    if damage == "name":
        path.rename(path.with_name("ids-1.new"))
    else:
        data[20 if damage == "head" else -3] ^= 0xFF
        path.write_bytes(data)
    assert new(opened(tmp_path), batch(1, 2)) == [1, 2]
    assert "damaged" in caplog.text
