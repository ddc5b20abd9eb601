"""The spool survives: every crash point, a full disk, a failing sync, a second query, a replaced directory."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.recording.files import Files
from gnsq_lite.recording.schema import to_batch
from gnsq_lite.spark import segments
from gnsq_lite.spark.spool import Spool, locate
from gnsq_lite.spark.spoolmeta import DataLoss, SpoolError, SpoolInUse
from tests.fakes import FakeClock
from tests.spark.fakes import Crash, CrashingFiles, FailingSync, FakeMessage, FullDisk


def make(directory: Path, **more: Any) -> Spool:
    options: dict[str, Any] = {"topic": "t", "channel": "c", "rows_per_segment": 5, **more}
    return Spool(directory, **options)


def opened(directory: Path, **more: Any) -> Spool:
    spool = make(directory, **more)
    spool.open(lock_wait=0.0)
    return spool


def rows(first: int, count: int, partition: int = -1) -> list[tuple[int, Any]]:
    return [(partition, to_batch([FakeMessage(n, b"%d" % n) for n in range(first, first + count)]))]


def read(directory: Path, start: int, end: int) -> list[int]:
    found = []
    for segment, path in locate(directory, start, end):
        for batch in segments.read_file(path, segment):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return found


def test_what_is_appended_is_sealed_under_numbers_without_gaps(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 2))
    assert spool.roll() == 1
    assert spool.roll() == 1, "nothing new: no empty segment"
    spool.append(rows(2, 1))
    assert spool.roll() == 2
    assert read(tmp_path, 0, 2) == [0, 1, 2]
    spool.close()


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("at", [3, 8, 80], ids=["head", "a record's head", "a record"])
def test_damage_before_acknowledged_rows_is_no_torn_write(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    spool = opened(tmp_path, rows_per_segment=50)
    for number in range(3):
        spool.append(rows(number, 1))
    spool.close()
    (path,) = tmp_path.glob("open-*.part")
    data = bytearray(path.read_bytes())
    data[at if at == 3 else at + len(segments.head(rows(0, 1)[0][1].schema))] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(segments.SegmentDamaged, match=r"damaged at byte .*failOnDataLoss=false"):
            opened(tmp_path)
    assert path.read_bytes() == data, "it is as it was found"
    spool = opened(tmp_path, complete=False)
    assert spool.segments == []
    assert "is damaged at byte" in caplog.text
    spool.close()


def test_no_segment_has_more_rows_than_its_limit(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 13))
    assert [s.rows for s in spool.segments] == [5, 5]
    spool.roll()
    assert [s.rows for s in spool.segments] == [5, 5, 3]
    assert read(tmp_path, 0, 3) == list(range(13))
    spool.close()


def test_a_segment_is_sealed_when_its_bytes_reach_the_limit(tmp_path: Path) -> None:
    spool = opened(tmp_path, rows_per_segment=1000, bytes_per_segment=4096)
    for n in range(20):
        spool.append(rows(n, 1))
    assert len(spool.segments) > 1
    assert all(s.size < 4096 + 2048 for s in spool.segments)
    spool.close()


def test_each_topic_partition_has_segments_of_its_own(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 2, 0) + rows(10, 2, 1))
    spool.append(rows(2, 1, 0))
    spool.roll()
    assert sorted((s.partition, s.rows) for s in spool.segments) == [(0, 3), (1, 2)]
    spool.close()


def test_what_was_open_is_sealed_when_it_is_opened_again(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 3))
    spool.close()
    again = opened(tmp_path)
    assert [(s.number, s.rows) for s in again.segments] == [(1, 3)]
    assert again.meta.uuid == spool.meta.uuid
    again.close()


@pytest.mark.rule("PIPE-2")
def test_a_crash_at_any_step_loses_nothing_that_was_synced_and_changes_no_number(tmp_path: Path) -> None:
    """Appends of two rows, seals and commits; the process dies at each possible call in turn."""
    for at in range(200):
        directory = tmp_path / str(at)
        files = CrashingFiles(at)
        acknowledged: list[int] = []
        told: dict[int, list[int]] = {}
        committed = 0
        spool = make(directory, files=files, retention=3600.0)
        crashed = False
        try:
            spool.open(lock_wait=0.0)
            for step in range(6):
                spool.append(rows(2 * step, 2))
                acknowledged += [2 * step, 2 * step + 1]
                if step % 2:
                    end = spool.roll()
                    told[end] = read(directory, 0, end)
                if step == 3:
                    spool.commit(1)
                    committed = 1
        except Crash:
            crashed = True
        files.counting = False
        spool.close()
        with_open = opened(directory, retention=3600.0)
        newest = with_open.roll()
        assert [s.number for s in with_open.segments] == list(range(with_open.meta.committed + 1, newest + 1)), at
        kept = read(directory, 0, newest)
        assert kept[: len(acknowledged)] == acknowledged, f"lost after a crash at step {at}"
        for end, before in told.items():
            assert read(directory, 0, end) == before, f"batch up to {end} changed after a crash at step {at}"
        assert with_open.meta.committed in (committed, 1)
        with_open.close()
        if not crashed:
            assert at > 30
            return
    pytest.fail("the run never ended without a crash")


def test_a_full_disk_stores_nothing_and_the_next_append_goes_on(tmp_path: Path) -> None:
    files = FullDisk(10**6)
    spool = opened(tmp_path, files=files)
    spool.append(rows(0, 2))
    for room in (0, 10, 700, 1500, 2500):
        files.room = room
        with pytest.raises(OSError, match="No space"):
            spool.append(rows(100, 12))
    files.room = 10**6
    spool.append(rows(2, 2))
    assert read(tmp_path, 0, spool.roll()) == [0, 1, 2, 3]
    spool.close()


def test_a_failed_sync_takes_the_rows_back(tmp_path: Path) -> None:
    spool = opened(tmp_path, files=FailingSync({3}))  # 1 is META.json, 2 the first append
    spool.append(rows(0, 2))
    with pytest.raises(OSError, match="Input/output"):
        spool.append(rows(100, 2))
    spool.append(rows(2, 1))
    assert read(tmp_path, 0, spool.roll()) == [0, 1, 2]
    spool.close()


def test_rows_that_cannot_be_taken_back_are_an_error_of_another_kind(tmp_path: Path) -> None:
    class Worse(FullDisk):
        def truncate(self, fd: int, size: int) -> None:
            raise OSError(5, "Input/output error")

    files = Worse(10**6)
    spool = opened(tmp_path, files=files)
    spool.append(rows(0, 1))
    files.room = 3
    with pytest.raises(SpoolError, match="could not be undone"):
        spool.append(rows(1, 1))
    spool.close()


def test_committed_segments_are_kept_for_the_retention_and_then_removed(tmp_path: Path) -> None:
    clock = FakeClock()
    spool = opened(tmp_path, retention=60.0, clock=clock)
    spool.append(rows(0, 2))
    spool.commit(spool.roll())
    assert [s.number for s in segments.listed(tmp_path / "done")] == [1]
    assert segments.listed(tmp_path) == []
    clock.advance(59.0)
    spool.sweep()
    assert read(tmp_path, 0, 1) == [0, 1], "a batch that runs again finds it"
    clock.advance(2.0)
    spool.sweep()
    assert segments.listed(tmp_path / "done") == []
    spool.append(rows(2, 1))
    assert spool.roll() == 2, "numbers go on"
    spool.close()
    assert opened(tmp_path).newest == 2


def test_a_missing_segment_is_data_loss_and_is_named(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for n in range(3):
        spool.append(rows(n, 1))
        spool.roll()
    (tmp_path / spool.segments[1].name).unlink()
    with pytest.raises(DataLoss, match=r"lacks segment 2 of \(0, 3\].*failOnDataLoss"):
        spool.located(0, 3, complete=True)
    assert [s.number for s, _ in locate(tmp_path, 0, 3, complete=False)] == [1, 3]
    spool.close()


def test_bytes_that_wait_are_those_no_batch_has(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 2))
    spool.roll()
    sealed = spool.segments[0].size
    spool.append(rows(2, 2))
    assert spool.bytes_after(0) > sealed
    assert spool.bytes_after(0) - spool.bytes_after(1) == sealed
    spool.close()


def test_another_topics_spool_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(SpoolError, match="belongs to t/c, not to other/c"):
        make(tmp_path, topic="other").open(0.0)


@pytest.mark.parametrize("text", ["", "{", '{"v": 1}', '{"v": 9, "uuid": "u", "topic": "t", "channel": "c"}'])
def test_a_damaged_meta_is_refused_and_not_overwritten(tmp_path: Path, text: str) -> None:
    opened(tmp_path).close()
    (tmp_path / "META.json").write_text(text)
    with pytest.raises(SpoolError):
        make(tmp_path).open(0.0)
    assert (tmp_path / "META.json").read_text() == text


def test_segments_without_a_meta_are_refused(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows(0, 1))
    spool.roll()
    spool.close()
    (tmp_path / "META.json").unlink()
    with pytest.raises(SpoolError, match="no META"):
        make(tmp_path).open(0.0)


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="cannot be opened"):
        make(tmp_path / "file" / "spool").open(0.0)


def _hold(directory: Path, ready: Any, leave: Any) -> None:
    spool = make(directory)
    spool.open(0.0)
    ready.set()
    leave.wait(30)
    os._exit(9)  # without closing: the lock goes with the process


def test_a_second_query_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready, leave))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(SpoolInUse, match=f"in use by another query \\(pid {holder.pid} "):
            make(tmp_path).open(0.0)
    finally:
        leave.set()
        holder.join(30)
    opened(tmp_path).close()


def test_opening_waits_a_moment_for_the_lock(tmp_path: Path) -> None:
    first = opened(tmp_path)
    begun = time.monotonic()
    with pytest.raises(SpoolInUse):
        make(tmp_path).open(0.2)
    assert time.monotonic() - begun >= 0.2
    first.close()


def test_numbers_are_not_given_again_when_a_checkpoint_knows_more(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.advance(41)
    spool.append(rows(0, 1))
    assert spool.roll() == 42
    spool.close()


def test_meta_is_what_the_docs_say(tmp_path: Path) -> None:
    spool = opened(tmp_path, files=Files())
    meta = json.loads((tmp_path / "META.json").read_text())
    assert set(meta) == {"v", "uuid", "topic", "channel", "committed"}
    spool.close()
