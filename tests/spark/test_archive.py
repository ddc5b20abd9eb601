"""Compaction joins files and survives a crash at every step; the plot is a picture."""

from __future__ import annotations

import importlib.util
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.spark import summary
from gnsq_lite.spark.archive import RowsElsewhere, compact, instants, store_batch
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.pipelines import _Watch, read_archive, replay
from tests.spark.fakes import Crash, CrashingFiles


def make(root: Path, hours: int, files: int) -> list[int]:
    number = 0
    for hour in range(hours):
        folder = root / "day=2026-11-21" / f"hour={hour:02d}"
        folder.mkdir(parents=True)
        for name in range(files):
            when = pa.array([datetime(2026, 11, 21, hour, tzinfo=timezone.utc)] * 3, pa.timestamp("us", "UTC"))
            table = pa.table({"n": [number, number + 1, number + 2], "timestamp": when})
            pq.write_table(table, folder / f"batch-q-{name:06d}-0.parquet", use_deprecated_int96_timestamps=True)
            number += 3
    (root / "_batches").mkdir()
    for name in range(files):
        (root / "_batches" / f"q-{name:06d}").touch()
    return list(range(number))


def rows(root: Path) -> list[int]:
    found = []
    for path in root.glob("day=*/hour=*/*.parquet"):
        found += pq.ParquetFile(path).read().column("n").to_pylist()
    return sorted(found)


def test_the_files_of_an_hour_become_one(tmp_path: Path) -> None:
    wanted = make(tmp_path, 2, 5)
    done = compact(tmp_path, min_age=0.0)
    assert (done.partitions, done.files_before, done.files_after, done.rows) == (2, 10, 2, 30)
    assert rows(tmp_path) == wanted
    (joined, _) = tmp_path.glob("day=*/hour=*/*.parquet")
    assert pq.read_schema(joined).field("timestamp").type == pa.timestamp("us", "UTC")
    assert compact(tmp_path, min_age=0.0).partitions == 0


def test_files_of_other_columns_are_joined(tmp_path: Path) -> None:
    make(tmp_path, 1, 3)
    wide = pa.table({"n": [9], "timestamp": pa.array([None], pa.timestamp("us", "UTC")), "partition": [7]})
    pq.write_table(wide, tmp_path / "day=2026-11-21" / "hour=00" / "batch-q-000003-0.parquet")
    (tmp_path / "_batches" / "q-000003").touch()
    assert compact(tmp_path, min_age=0.0).files_before == 4
    (joined,) = tmp_path.glob("day=*/hour=*/*.parquet")
    assert pq.ParquetFile(joined).read().column("partition").to_pylist() == [None] * 9 + [7]
    assert rows(tmp_path) == list(range(10))


def test_hours_that_are_written_to_or_have_few_files_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, 1, 5)
    assert compact(tmp_path, min_age=3600.0).partitions == 0
    assert compact(tmp_path, min_files=6, min_age=0.0).partitions == 0
    for path in tmp_path.glob("day=*/hour=*/*.parquet"):
        os.utime(path, (0, 0))
    assert compact(tmp_path, min_age=3600.0).partitions == 1


def test_a_compaction_that_crashed_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    for at in range(60):
        root = tmp_path / str(at)
        wanted = make(root, 2, 4)
        files = CrashingFiles(at)
        try:
            compact(root, min_age=0.0, files=files)
        except Crash:
            compact(root, min_age=0.0)
            assert rows(root) == wanted, f"after a crash at step {at}"
            assert list((root / "_compacting").iterdir()) == []
        else:
            assert at > 10
            return
    pytest.fail("it never ended without a crash")


class Frame:
    """A micro-batch of rows of two hours, written as Spark writes it."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.write = self

    def selectExpr(self, *_: str) -> Frame:
        return self

    def partitionBy(self, *_: str) -> Frame:
        return self

    def parquet(self, uri: str) -> None:
        for hour in range(2):
            folder = Path(uri.removeprefix("file://")) / "day=2026-11-21" / f"hour={hour:02d}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"n": self.numbers[hour::2]}), folder / "part-0.parquet")


def store(frame: Frame, batch_id: int, root: Path, files: Files | None = None) -> None:
    store_batch(frame, batch_id, "q", root, lambda: len(frame.numbers), files)


@pytest.mark.rule("PIPE-2")
def test_rows_that_executors_wrote_elsewhere_do_not_count_as_archived(tmp_path: Path) -> None:
    class Elsewhere(Frame):
        """One of two tasks ran on this machine."""

        def parquet(self, uri: str) -> None:
            super().parquet(uri)
            (Path(uri.removeprefix("file://")) / "day=2026-11-21/hour=01/part-0.parquet").unlink()

    with pytest.raises(RowsElsewhere, match=r"has 10 rows, of which 5 are in the archive .* executors share"):
        store(Elsewhere(list(range(10))), 0, tmp_path)
    assert rows(tmp_path) == []
    store(Frame(list(range(10))), 0, tmp_path)
    assert rows(tmp_path) == list(range(10))


@pytest.mark.rule("PIPE-3")
def test_a_batch_that_crashed_anywhere_is_there_once_though_the_archive_was_compacted_before_its_restart(
    tmp_path: Path,
) -> None:
    for at in range(60):
        root = tmp_path / str(at)
        for batch in range(3):
            store(Frame([10 * batch + n for n in range(10)]), batch, root)
        wanted = list(range(40))
        try:
            store(Frame(list(range(30, 40))), 3, root, CrashingFiles(at))
        except Crash:
            compact(root, min_files=2, min_age=0.0)
            store(Frame(list(range(30, 40))), 3, root)
            assert rows(root) == wanted, f"after a crash at step {at}"
            compact(root, min_files=2, min_age=0.0)
            assert rows(root) == wanted
        else:
            assert at > 5
            return
    pytest.fail("it never ended without a crash")


def test_int96_times_are_instants() -> None:
    schema = instants(pa.schema([pa.field("t", pa.timestamp("ns")), pa.field("n", pa.int64())]))
    assert schema.field("t").type == pa.timestamp("us", "UTC")


def test_each_batch_of_a_query_is_counted_once_and_none_is_kept_in_mind() -> None:
    def reports(*pairs: tuple[int, int]) -> Any:
        return SimpleNamespace(recentProgress=[{"batchId": batch, "numInputRows": rows} for batch, rows in pairs])

    watch = _Watch(None)
    for query in (reports((0, 5), (1, 0)), reports((0, 5), (1, 0), (1, 7)), reports((1, 7), (2, 1))):
        watch.look(query)
    assert (watch.batches, watch.rows) == (3, 13)
    assert not any(isinstance(kept, list | set | dict) for kept in vars(watch).values())


def test_a_path_without_an_archive_is_said_before_spark_is_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Parquet"):
        read_archive(None, tmp_path)
    with pytest.raises(OptionError, match="more than 0"):
        replay(tmp_path, {"nsqdTCPAddresses": "n", "topic": "t"}, rate=0)
    with pytest.raises(OptionError, match="either"):
        summary.summarize()


def window(minute: int, topic: str) -> summary.Window:
    begins = datetime(2026, 11, 21, 4, minute)
    return summary.Window(topic, begins, 1234, 123_400, 100.0, 2, 3, 0.25, 1.5)


def test_a_table_shows_every_figure() -> None:
    (row,) = summary.cells([window(5, "clicks")])
    assert row == ("clicks", "2026-11-21 04:05:00", "1,234", "123,400", "100", "2", "3", "0.250 s", "1.500 s")
    assert len(summary.HEADERS) == len(row)


def test_a_plot_is_a_png(tmp_path: Path) -> None:
    target = tmp_path / "lag.png"
    if importlib.util.find_spec("matplotlib") is not None:
        summary.plot([window(5, "a"), window(6, "a"), window(5, "b")], target)
        assert target.read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtra, match="matplotlib"):
        summary.plot([], tmp_path / "lag.png")
