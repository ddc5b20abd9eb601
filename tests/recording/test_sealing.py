"""Sealed recordings: each row is in one sealed file, even if sealers die, and readers see no difference."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from gnsq_lite.arrow import YOUZAN_COLUMNS, arrow_schema, to_batch
from gnsq_lite.recording import Recording, lease, local, parquet, sealer
from gnsq_lite.recording import recording as module
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, RecordingError, RecordingFenced
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.known import DedupIndex
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.sealer import Sealer, seal_free_logs, seal_log
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.recording.fakes import Crash, CrashingFiles, FakeMessage, FakeReceiver
from tests.recording.places import FolderStore, batch, bodies, in_folder, sealed_folder

Make = Callable[..., Recording]


def written(recording: Recording, count: int, *, packs: int = 1) -> Any:
    """Return the writer of a log with *packs* packs, or *packs* times more objects, of *count* rows each."""
    writer = recording.take()
    for number in range(writer.last, writer.last + packs * count, count):
        for row in range(number, number + count):
            writer.append([batch(row)])
        writer.complete()
    return writer


def seal(recording: Recording, writer: Any, *, limit: int = 1 << 30, whole: bool = True) -> int:
    writer.seals = limit
    return seal_log(recording, writer, writer.last, whole=whole)


@pytest.mark.rule("PIPE-3")
def test_sealed_rows_keep_their_numbers_and_other_tools_read_the_folder(make: Make, place: str) -> None:
    recording = make()
    recording.begin_sealing()
    assert in_folder(place) == [], "tools can read the folder before the first rows are sealed"
    writer = written(recording, 3, packs=2)
    (name,) = recording.names()
    reader = recording.reader(name)
    assert seal(recording, writer) == 0
    assert in_folder(place) == list(range(6))
    assert not reader.unsealed()
    writer.append([batch(6, 7)])
    assert bodies(recording) == bodies(make()) == list(range(8))
    assert make().bounds() == {name: (1, 8)}
    for start in range(8):
        for end in range(start, 9):
            assert bodies(make(), start={name: start}, end={name: end}) == list(range(start, end))
    assert list(make().verify()) == [(name, (1, 8), "")]
    writer.complete()
    seal(recording, writer)
    writer.close()
    names = sorted(path.name for path in sealed_folder(place).iterdir())
    assert names == [f"{name}-{1:016d}.parquet", f"{name}-{7:016d}.parquet", parquet.SCHEMA_FILE]
    again = make().take()
    assert (again.name, again.last) == (name, 8), "a log without packs goes on"
    again.append([batch(8)])
    again.close()
    assert bodies(make()) == list(range(9))
    assert bodies(make(), since=1_700_000_000.000004, until=1_700_000_000.000008) == [4, 5, 6, 7]


def test_sealed_files_have_the_form_that_tools_prune_and_check(make: Make, place: str) -> None:
    recording = make()
    recording.begin_sealing()
    writer = written(recording, 5)
    seal(recording, writer)
    writer.close()
    (path,) = (one for one in sealed_folder(place).iterdir() if one.name != parquet.SCHEMA_FILE)
    metadata = pyarrow.parquet.read_metadata(path)
    columns = {metadata.schema.column(at).name: metadata.row_group(0).column(at) for at in range(7)}
    assert {name for name, column in columns.items() if column.is_stats_set} == {"timestamp", "id"}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    dictionaries = {name for name, column in columns.items() if column.has_dictionary_page}
    assert dictionaries == {"topic", "channel", "nsqd", "attempts"}
    schema = pyarrow.parquet.read_schema(path)
    assert [field.type for field in schema] == [field.type for field in arrow_schema()]
    assert not any(field.nullable for field in schema)
    assert (
        schema.remove_metadata() == pyarrow.parquet.read_schema(path.with_name(parquet.SCHEMA_FILE)).remove_metadata()
    )


def test_a_sealed_file_is_readable_as_far_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        recording = Recording(str(tmp_path / "r"))
        recording.create("t", "c")
        recording.begin_sealing()
    finally:
        os.umask(before)
    assert (tmp_path / "r" / "parquet" / parquet.SCHEMA_FILE).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "r" / "parquet").stat().st_mode & 0o777 == 0o755
    assert not list((tmp_path / "r" / "sealing").iterdir())


class SealCrashes(CrashingFiles):
    """Dies also before a link and before a removal that the seal makes."""

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)


@pytest.mark.rule("PIPE-2")
def test_a_sealer_that_dies_at_any_step_loses_and_doubles_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(100):
        place = str(tmp_path / str(step))
        files = SealCrashes(step)
        files.counting = False
        recording = Recording(place, files=files)
        recording.create("t", "c")
        recording.begin_sealing()
        writer = written(recording, 2, packs=3)
        (name,) = recording.names()
        removed, remove = [], local.LocalReader.remove

        def remove_one_by_one(
            reader: local.LocalReader,
            ages: Any,
            files: SealCrashes = files,
            removed: list[Any] = removed,
            do: Any = remove,
        ) -> None:
            for age in ages:
                files._step()
                do(reader, [age])
                removed.append(age)

        monkeypatch.setattr(local.LocalReader, "remove", remove_one_by_one)
        files.counting = True
        died = True
        try:
            seal(recording, writer, limit=1)
            died = False
        except Crash:
            pass
        files.counting = False
        monkeypatch.setattr(local.LocalReader, "remove", remove)
        writer.close()
        assert bodies(Recording(place)) == list(range(6)), step
        assert sorted(set(in_folder(place))) == sorted(in_folder(place)), step
        after = Recording(place).take()
        assert (after.name, after.last) == (name, 6), step
        after.append([batch(6)])
        after.complete()
        seal(Recording(place), after)
        after.close()
        assert in_folder(place) == bodies(Recording(place)) == list(range(7)), step
        assert not Recording(place).reader(name).replaced(), "packs of sealed rows are removed"
        assert not local.packs(tmp_path / str(step) / "logs" / name), step
        if not died:
            assert step > 10
            return
    raise AssertionError("the seal did not end")


@pytest.mark.rule("PIPE-2")
def test_a_sealer_of_objects_that_dies_before_or_after_any_request_loses_and_doubles_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("GNSQ_TEST_FOLDER", str(tmp_path / "bucket"))
    left = [0]

    class DyingStore(FolderStore):
        """Dies before or after the n-th request that changes something."""

        def create(self, name: str, data: bytes) -> None:
            self._step()
            super().create(name, data)
            self._step()

        def remove(self, *names: str) -> None:
            for name in names:  # a store removes objects one by one
                self._step()
                super().remove(name)
            self._step()

        def _step(self) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        def below(self, prefix: str) -> FolderStore:
            found = DyingStore(self.url, self._given, self._prefix + prefix)
            found._store = self._opened()
            return found

    monkeypatch.setattr(module.objectstore, "ObjectStore", DyingStore)
    monkeypatch.setattr(lease, "LEASE", 0.05)
    for step in range(1, 100):
        place, left[0] = f"s3://bucket/{step}", 0
        recording = Recording(place)
        recording.create("t", "c")
        recording.begin_sealing()
        writer = written(recording, 2, packs=3)
        left[0] = step
        try:
            seal(recording, writer, limit=1000)
        except Crash:
            pass
        died, left[0] = left[0] <= 0, 0
        writer.lease._closing.set()  # the process is gone
        assert bodies(Recording(place)) == list(range(6)), step
        assert sorted(set(in_folder(place))) == sorted(in_folder(place)), step
        after = Recording(place).writer(writer.name)
        after.open(wait=30.0)
        assert after.last == 6, step
        after.append([batch(6)])
        seal(Recording(place), after)
        after.close()
        assert in_folder(place) == bodies(Recording(place)) == list(range(7)), step
        if not died:
            assert step > 10
            return
    raise AssertionError("the seal did not end")


@pytest.mark.rule("PIPE-3")
def test_a_read_goes_on_at_the_same_row_if_rows_are_sealed_at_any_step(make: Make) -> None:
    for step in range(8):
        recording = make()
        recording.begin_sealing()
        writer = written(recording, 2, packs=3)
        name, first = writer.name, writer.last - 6
        reader = make().reader(name)
        span = reader.span(first, writer.last)
        pieces = reader.pieces(first, writer.last)
        found: list[int] = []
        read = reader.read(span)
        for _ in range(step):
            found += [
                int(body) for _, one in [next(read, (None, pa.table({"body": []})))] for body in one["body"].to_pylist()
            ]
        next(pieces, None)
        seal(make(), writer, limit=1)
        found += [int(body) for _, one in read for body in one["body"].to_pylist()]
        assert found == list(range(first, writer.last)), step
        assert sum(1 for _ in pieces) >= 2
        planned = reader.span(first, writer.last)
        assert [int(b) for _, one in reader.read(planned) for b in one["body"].to_pylist()] == found
        writer.close()


@pytest.mark.rule("PIPE-3")
def test_a_reader_whose_names_are_old_finds_rows_that_were_sealed_and_partly_removed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = make()
    recording.begin_sealing()
    writer = written(recording, 2)
    reader = make().reader(writer.name)
    assert reader.bounds().last == 2
    for row in (2, 3):
        writer.append([batch(row)])
        writer.complete()
    sealing = recording.reader(writer.name)
    remove = sealing.remove
    monkeypatch.setattr(sealing, "remove", lambda ages: remove(ages[-2:]))  # a store removes objects one by one
    seal(recording, writer)
    writer.append([batch(4, 5)])
    assert reader.bounds().last == 6
    assert [int(b) for _, one in reader.read(reader.span(0, 6)) for b in one["body"].to_pylist()] == list(range(6))
    writer.close()


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("step", ["check_writer", "add_sealed", "remove"])
def test_a_sealer_that_is_suspended_while_another_seals_adds_nothing(
    make: Make, place: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = make()
    recording.begin_sealing()
    old = written(recording, 2, packs=2)
    is_remote = place.startswith("s3:")
    new = recording.writer(old.name) if is_remote else old

    def meanwhile() -> None:
        """Let another process, which has taken over the lease, seal the same rows in other portions."""
        if is_remote:
            old.lease._closing.set()
            new.open(wait=30.0)
        seal(make(), new, limit=1)
        new.append([batch(new.last)])

    owner: Any = {"add_sealed": recording, "check_writer": old, "remove": recording.reader(old.name)}[step]
    do, calls = getattr(owner, step), []

    def suspended(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == (2 if step == "remove" else 1):  # the first removal is that of packs that are sealed
            meanwhile()
        return do(*arguments)

    monkeypatch.setattr(owner, step, suspended)
    if is_remote and step == "check_writer":
        with pytest.raises(RecordingFenced):
            seal(recording, old)
    else:
        seal(recording, old)
    monkeypatch.setattr(owner, step, do)
    assert bodies(make()) == list(range(5))
    assert new.last == 5
    new.complete()
    seal(make(), new)
    assert in_folder(place) == list(range(5))
    new.close()
    if is_remote:
        old.close()


def test_a_sealed_recording_has_a_version_that_older_releases_refuse(make: Make, place: str) -> None:
    recording = make()
    plain = json.loads(recording._root.read("meta"))
    assert set(plain) == {"uuid", "topic", "channel", "owned", "v"}, "older releases read it"
    assert plain["v"] == 1
    written(recording, 1).close()
    recording.begin_sealing()
    assert json.loads(recording._root.read("meta")) == {**plain, "v": 2, "youzan": False}
    assert make().create("t", "c") == make().begin_sealing() == recording.meta()
    recording._root.write("meta", json.dumps({**plain, "v": 3}).encode())
    with pytest.raises(RecordingError, match=r"has version 3; this library knows versions 1 and 2"):
        recording.meta()


def test_a_recording_is_sealed_from_its_first_row_with_the_columns_that_its_packs_have(make: Make, place: str) -> None:
    recording = make()
    writer = recording.take()
    message = FakeMessage(0, b"0", partition=3)
    message.internal_id, message.trace_id, message.headers = 7, (1 << 64) - 1, {"a": "b"}
    writer.append([(3, to_batch([message], include_youzan=True))])  # type: ignore[list-item]
    writer.append([batch(1)])
    writer.complete()
    before = [one.to_pylist() for one in recording.batches()]
    assert recording.begin_sealing().youzan
    seal(recording, writer)
    writer.close()
    found = pyarrow.dataset.dataset(sealed_folder(place)).to_table()
    assert found.column_names[-4:] == [name for name, _, _ in YOUZAN_COLUMNS]
    assert found.column("traceId").to_pylist() == [-1, None]
    assert [one.to_pylist() for one in make().batches()] == before
    (name,) = recording.names()
    reader = make().reader(name)
    assert [frame.partition for frame, _ in reader.read(reader.span(0, 2))] == [3, -1]
    known = DedupIndex(recording.writer(name).ids, 100)
    known.load((frame.partition, one) for frame, one in reader.read(reader.span(0, 2)))
    again = to_batch([message], include_youzan=True)  # type: ignore[list-item]
    assert known.fresh(3, again).num_rows == 0
    assert known.fresh(4, again).num_rows == 1, "another partition is another origin"


def test_rows_whose_columns_the_sealed_files_lack_stay_in_their_packs(make: Make, place: str) -> None:
    recording = make()
    writer = recording.take()
    make().begin_sealing()  # by another recorder, before this one has stored a row
    message = FakeMessage(0, b"0", partition=3)
    message.trace_id = 9
    writer.append([(3, to_batch([message], include_youzan=True))])  # type: ignore[list-item]
    writer.close()
    before = [one.to_pylist() for one in make().batches()]
    ((name, why),) = seal_free_logs(make())
    assert (name, why) == (writer.name, "rows have columns of Youzan's NSQ, which the recording's Parquet files lack")
    assert in_folder(place) == []
    assert [one.to_pylist() for one in make().batches()] == before


@pytest.mark.rule("PIPE-2")
def test_a_write_during_the_listing_of_a_sealer_is_not_sealed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(4):
        place = str(tmp_path / str(step))
        recording = Recording(place)
        recording.create("t", "c")
        recording.begin_sealing()
        writer = written(recording, 3)
        calls = [0]

        def write_at_step(do: Callable[[Path], Any], directory: Path, calls: list[int], writer: Any, step: int) -> Any:
            if calls[0] == step:
                writer.append([batch(writer.last)])
            calls[0] += 1
            return do(directory)

        with monkeypatch.context() as patched:
            for name in ("packs", "_read_end"):
                more = {"calls": calls, "writer": writer, "step": step}
                patched.setattr(local, name, partial(write_at_step, getattr(local, name), **more))
            seal(recording, writer)
        writer.append([batch(writer.last)])
        assert bodies(Recording(place)) == list(range(5)), step
        writer.complete()
        seal(recording, writer)
        writer.close()
        assert in_folder(place) == list(range(5)), step


def test_recorders_that_start_together_all_make_the_recording_sealed(tmp_path: Path) -> None:
    class Slow(Files):
        def link(self, source: Path, target: Path) -> None:
            time.sleep(0.01)
            super().link(source, target)

        def rename(self, source: Path, target: Path) -> None:
            time.sleep(0.01)
            super().rename(source, target)

    def start(number: int) -> bool:
        recording = Recording(str(tmp_path), files=Slow())
        recording.create("t", "c")
        together.wait()
        return recording.begin_sealing().is_sealed

    together = Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(start, range(4)))
    assert in_folder(str(tmp_path)) == []


@pytest.mark.parametrize("then", ["seal", "trim"])
def test_a_file_that_goes_while_a_reader_lists_is_looked_up_again(
    make: Make, place: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = make()
    recording.begin_sealing()
    writer = written(recording, 3)
    if then == "trim":
        seal(recording, writer)
        writer.append([batch(3)])
    reader = make().reader(writer.name)
    left = [1]

    def meanwhile(do: Callable[..., Any], *arguments: Any) -> Any:
        if left:
            left.clear()
            mine = make().reader(writer.name)
            if then == "seal":
                seal(make(), writer)
            else:
                mine.remove([file.age() for file in mine.files()[:1]])
        return do(*arguments)

    step = "_end" if then == "trim" else "_last_row" if place.startswith("s3:") else "_list_sealed"
    monkeypatch.setattr(reader, step, partial(meanwhile, getattr(reader, step)))
    assert reader.bounds() == ((1, 3) if then == "seal" else (4, 4))
    assert not left
    writer.close()


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("sealed", [4, 9, 10])
def test_a_merge_that_ends_after_another_recorder_sealed_its_rows_hides_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: int
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("GNSQ_TEST_FOLDER", str(tmp_path))
    monkeypatch.setattr(module.objectstore, "ObjectStore", FolderStore)
    monkeypatch.setattr(lease, "LEASE", 0.05)
    place = "s3://bucket/recording"
    recording = Recording(place)
    recording.create("t", "c")
    old: Any = recording.take()
    for row in range(10):
        old.append([batch(row)])
    new: Any = recording.writer(old.name)
    create = old._merged.create

    def suspended(name: str, data: bytes) -> None:
        old.lease._closing.set()
        new.open(wait=30.0)
        Recording(place).begin_sealing()
        new.seals = old._parts[0][2] * 4
        seal_log(Recording(place), new, sealed, whole=sealed != 4)
        create(name, data)

    monkeypatch.setattr(old._merged, "create", suspended)
    monkeypatch.setattr(old, "_parts", [*old._parts])
    old._merge()
    assert bodies(Recording(place)) == list(range(10))
    reader = Recording(place).reader(old.name)
    for start in range(10):
        assert sum(piece.last - piece.first + 1 for piece in reader.pieces(start, 10)) >= 10 - start
    new.append([batch(10)])
    seal(Recording(place), new)
    assert in_folder(place) == bodies(Recording(place)) == list(range(11))
    new.close()
    old.close()


def test_what_cannot_be_sealed_is_refused_by_name(make: Make, tmp_path: Path) -> None:
    recording = make()
    recording.begin_sealing()
    with pytest.raises(RecordingError, match="lack the columns of Youzan's NSQ: use another place"):
        recording.begin_sealing(include_youzan=True)
    owned = Recording(str(tmp_path / "owned"))
    owned.create("t", "c", owned=True)
    with pytest.raises(RecordingError, match=r"the Spark query that owns .* removes its rows"):
        owned.begin_sealing()

    class WithoutLinks(Files):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    other = Recording(str(tmp_path / "other"), files=WithoutLinks())
    other.create("t", "c")
    with pytest.raises(RecordingError, match="its file system has no hard links"):
        other.begin_sealing()
    assert not other.meta().is_sealed
    assert not list((tmp_path / "other" / "parquet").iterdir())


def test_a_changed_byte_of_a_sealed_file_is_reported(make: Make, place: str) -> None:
    recording = make()
    recording.begin_sealing()
    writer = written(recording, 4)
    seal(recording, writer)
    writer.close()
    (name,) = recording.names()
    path = sealed_folder(place) / parquet.sealed_name(name, 1)
    good = path.read_bytes()
    footer = int.from_bytes(good[-8:-4], "little") + 8
    for at in range(4, len(good) - footer, 31):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(RecordingDamaged, match=rf"{path.name} is damaged"):
            bodies(make())
    for rest in (good[: len(good) // 2], good[:5], b"", good[:-8] + b"\xff\xff\x00\x00PAR1"):
        path.write_bytes(rest)
        with pytest.raises(RecordingDamaged, match="is damaged"):
            bodies(make())
        ((log, _, wrong),) = make().verify()
        assert log == name
        assert "is damaged" in wrong


def test_retention_removes_sealed_files_and_a_reader_of_their_rows_is_told(make: Make, place: str) -> None:
    clock = FakeClock()
    recording = make(clock=clock)
    recording.begin_sealing()
    writer = recording.take()
    writer._clock = clock
    for row in range(4):
        writer.append([batch(row)])
        writer.complete()
        clock.advance(100.0)
        seal(recording, writer)
    name = writer.name
    reader = make().reader(name)
    late = reader.read(reader.span(0, 4))
    assert recording.trim(150.0) > 0
    assert in_folder(place) == bodies(make()) == [2, 3]
    with pytest.raises(DataLoss):
        list(late)
    assert [age.last for age in recording.reader(name).removable(4)] == [3]
    assert recording.trim(0.0, 0) > 0
    assert bodies(make()) == [3], "the newest file stays"
    writer.append([batch(4)])
    writer.close()
    assert bodies(make()) == [3, 4]


def test_free_logs_are_sealed_and_a_log_with_a_writer_is_named(
    make: Make, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE", 2.0)
    recording = make()
    recording.begin_sealing()
    busy = written(recording, 1)
    free = recording.writer("0a")
    free.open()
    free.append([batch(7)])
    free.close()
    recording.reader("0a").retire()
    assert dict(seal_free_logs(make())) == {busy.name: "a recorder writes it", "0a": ""}
    assert in_folder(place) == [7], "a retired log is sealed too"
    busy.close()
    assert dict(seal_free_logs(make())) == {busy.name: "", "0a": ""}
    assert sorted(in_folder(place)) == [0, 7]


@pytest.fixture
def recorder(make: Make) -> Iterator[tuple[Recording, Recorder]]:
    recording = make()
    recording.begin_sealing()
    writer = recording.take()
    options = RecorderOptions(topic="t", channel="c", client={"nsqd_tcp_addresses": ["n"]}, parquet=True)
    receiver: Any = FakeReceiver()
    one = Recorder(writer, recording.reader(writer.name), receiver, options)
    yield recording, one
    one.stop(5.0)


def store(recorder: Recorder, row: int, size: int) -> None:
    """Store a row, as if its frame had *size* bytes."""
    recorder.log.append([batch(row)])
    recorder.stored_bytes += size


def test_rows_are_sealed_by_bytes_and_by_age_and_few_bytes_after_an_hour(
    recorder: tuple[Recording, Recorder], place: str
) -> None:
    recording, one = recorder
    clock = FakeClock()
    thread = Sealer(recording, one, 64 << 20, 600.0, clock)
    one.log.seals = 1  # each row is enough for a file
    thread.look()
    store(one, 0, 2 << 20)
    thread.look()
    clock.advance(599.0)
    thread.look()
    assert in_folder(place) == []
    clock.advance(1.0)
    thread.look()
    assert in_folder(place) == [0], "after ten minutes"
    store(one, 1, 100)
    thread.look()
    clock.advance(3599.0)
    thread.look()
    assert in_folder(place) == [0], "few bytes wait, because files are never merged"
    clock.advance(1.0)
    thread.look()
    assert in_folder(place) == [0, 1]
    store(one, 2, 64 << 20)
    thread.look()
    assert in_folder(place) == [0, 1, 2], "at once"
    store(one, 3, 100)
    thread.stop()
    assert in_folder(place) == [0, 1, 2, 3], "at the end"


def test_rows_of_a_recorder_that_died_are_sealed_by_another_however_few(
    recorder: tuple[Recording, Recorder], place: str, make: Make
) -> None:
    recording, one = recorder
    clock = FakeClock()
    dead = recording.writer("0dead")
    dead.open()
    dead.append([batch(0)])
    dead._clock = clock
    thread = Sealer(recording, one, 64 << 20, 600.0, clock)

    def look(seconds: float) -> None:
        clock.advance(seconds)
        for other in thread._others.values():
            if hasattr(other.writer, "lease"):
                other.writer.lease._clock = clock
        thread.look_around()

    look(10.0)
    dead.append([batch(1)])
    look(10.0)
    look(590.0)
    assert in_folder(place) == [], "its newest row is too young"
    look(10.0)
    assert in_folder(place) == [], "its writer lives"
    dead.close()
    look(600.0)
    look(10.0)
    look(10.0)
    assert in_folder(place) == [0, 1]
    looks = thread._others["0dead"]
    look(10.0)
    assert thread._others["0dead"] == looks, "a sealed log is not opened again"


def test_a_seal_that_fails_is_logged_and_tried_again(
    recorder: tuple[Recording, Recorder], place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recording, one = recorder
    store(one, 0, 2 << 20)
    failures = [OSError(errno.ENOSPC, "No space left on device")]
    write = parquet.write

    def full(sink: BinaryIO, **given: Any) -> None:
        write(sink, **given)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(parquet, "write", full)
    monkeypatch.setattr(sealer, "LOOK", 0.01)
    monkeypatch.setattr(sealer, "RETRY", 0.01)
    thread = Sealer(recording, one, 1, 600.0)
    thread.start()
    wait_for(lambda: in_folder(place) == [0])
    thread.stop()
    assert "cannot be sealed now: [Errno 28] No space left on device" in caplog.text


def test_a_file_from_the_future_is_reported(
    recorder: tuple[Recording, Recorder], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    recording, one = recorder
    store(one, 0, 100)
    Sealer(recording, one).seal()
    assert "clock is wrong" not in caplog.text
    (sealed,) = (path for path in sealed_folder(place).iterdir() if path.name != parquet.SCHEMA_FILE)
    os.utime(sealed, (0, time.time() + 3600))
    Sealer(recording, one).seal()
    assert (f"such as {sealed.name}: a host's clock is wrong" in caplog.text) != place.startswith("s3:")
    gone = sealed.with_name("0a-0000000000000001.parquet")
    gone.symlink_to("removed")  # a name that is listed, but has no file: retention removes it meanwhile
    assert recording.sealed_in_future() == ([] if place.startswith("s3:") else [sealed.name])
