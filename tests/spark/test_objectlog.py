"""The spool on an object store: one writer, a fence for the one before, and no object that is taken for another.

Run against a folder, and against a real S3 server where GNSQ_VERSITYGW names one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gnsq_lite.recording.files import Store
from gnsq_lite.recording.known import Known
from gnsq_lite.recording.objectstore import ObjectStore, settings
from gnsq_lite.recording.schema import to_batch
from gnsq_lite.spark import objectlog as module
from gnsq_lite.spark.objectlog import HEAD_BYTES, ObjectLog, Patience, SpoolFenced
from gnsq_lite.spark.objectspool import ObjectSpool, read_object
from gnsq_lite.spark.segments import SegmentDamaged
from gnsq_lite.spark.spoolmeta import DataLoss, Meta, SpoolError, SpoolInUse, SpoolNotVisible
from tests.fakes import FakeClock
from tests.spark.fakes import FakeMessage
from tests.spark.gateway import PROGRAM, Gateway

Make = Callable[[], Store]


class FolderStore(ObjectStore):
    """obstore's own store of a folder."""

    def _opened(self) -> Any:
        from obstore.store import LocalStore

        if self._store is None:
            self._store = LocalStore(self.url, mkdir=True)
        return self._store


@pytest.fixture(params=["folder", *(["s3"] if PROGRAM else [])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """How a process gets at the store."""
    if request.param == "folder":
        yield lambda: FolderStore(str(tmp_path / "objects"), {})
        return
    gateway = Gateway(tmp_path)
    options = gateway.options("spool")
    given = settings({k.removeprefix("nsq.storage."): v for k, v in options.items() if k.startswith("nsq.storage.")})
    yield lambda: ObjectStore(options["spoolDir"], given)
    gateway.kill()


def kept_by(place: Make) -> type[Store]:
    """Return the class of what a log writes by: that of what is below a store."""
    return type(place().below("log/"))


def spool(store: Store, wait: float = 0.0, clock: FakeClock | None = None) -> ObjectSpool:
    """Return an opened spool; with *clock*, the waits for a lease pass by it."""
    log = ObjectLog(store) if clock is None else ObjectLog(store, clock, clock.advance)
    writes = FakeClock()
    log.patiently = Patience(store.url, writes, writes.advance)
    made = ObjectSpool(log, "t", "c")
    made.open(wait)
    return made


def rows(first: int, count: int, partition: int = -1) -> list[tuple[int, pa.RecordBatch]]:
    return [(partition, to_batch([FakeMessage(n, b"%d" % n) for n in range(first, first + count)]))]


def read(made: ObjectSpool, begin: int, end: int) -> list[int]:
    found = []
    for segment in made.located(begin, end, complete=True):
        for batch in read_object(made._log, made.meta.uuid, segment):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return found


def crash(made: ObjectSpool) -> None:
    """What SIGKILL leaves: no sign of life any more, and no lease given back."""
    made._log._closing.set()
    if made._log._heart is not None:
        made._log._heart.join()
        made._log._heart = None


def test_names_are_created_once_and_read_in_parts(place: Make) -> None:
    store = place().below("log/")
    store.create("1", b"abc")
    with pytest.raises(FileExistsError):
        store.create("1", b"abc")
    assert (store.read("1"), store.read("1", 1, 10), store.sizes()) == (b"abc", b"bc", {"1": 3})
    assert store.read("1", 3, 10) == b""
    store.write("1", b"other")
    assert store.read("1") == b"other"
    store.create("2", b"")
    store.remove("1", "2")
    store.remove("1")
    store.create("3", b"")
    store.remove("2", "3")
    assert store.names() == []
    with pytest.raises(FileNotFoundError):
        store.read("1")


def test_every_write_is_a_segment_and_a_restart_goes_on(place: Make) -> None:
    first = spool(place())
    first.append(rows(0, 3) + rows(3, 2, partition=1))
    end = first.roll()
    assert [(s.partition, s.rows) for s in first.segments] == [(-1, 3), (1, 2)]
    first.close()
    again = spool(place())
    assert again.meta.uuid == first.meta.uuid
    assert read(again, 0, end) == [0, 1, 2, 3, 4]
    again.append(rows(5, 1))
    assert read(again, end, again.roll()) == [5]
    assert again.roll() > end
    again.close()


def test_a_second_query_is_refused_while_the_first_lives(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE", 6.0)
    first = spool(place())
    with pytest.raises(SpoolInUse, match="in use by another query"):
        spool(place())
    first.append(rows(0, 1))
    first.close()
    spool(place()).close()


@pytest.mark.rule("PIPE-2")
def test_a_writer_that_comes_back_finishes_and_removes_nothing(place: Make) -> None:
    paused = spool(place())
    paused.append(rows(0, 2))
    crash(paused)  # paused: it will go on
    clock = FakeClock()
    other = spool(place(), clock=clock)
    assert clock.now() >= 1000.0 + module.LEASE, "it waited for a sign of life"
    assert read(other, 0, other.roll()) == [0, 1]
    with pytest.raises(SpoolFenced, match="taken over"):
        paused.append(rows(2, 1))
    with pytest.raises(SpoolFenced, match="removes nothing"):
        paused.commit(1)
    other.append(rows(2, 1))
    other.commit(other.roll())
    assert other.kept() == []
    with pytest.raises(SpoolFenced):
        paused.append(rows(3, 1))
    other.close()


@pytest.mark.parametrize("folder", ["lease/", "committed/"])
def test_a_listing_that_names_what_another_has_removed_is_asked_for_again(
    place: Make, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    before = spool(place())
    before.append(rows(0, 2))
    before.commit(1)
    before.close()
    store: Any = kept_by(place)
    sizes, stale = store.sizes, [1, 2]

    def late(self: Any, until: str | None = None) -> dict[str, int]:
        found: dict[str, int] = sizes(self, until)
        if stale and self._prefix == folder:
            stale.pop()
            return {module.key(0): 1} if folder == "committed/" else {**found, module.key(7): 1}
        return found

    monkeypatch.setattr(store, "sizes", late)
    other = spool(place(), wait=1.0, clock=FakeClock())
    assert (other.meta.committed, stale) == (1, [])
    other.close()


def test_what_the_one_before_wrote_at_the_last_moment_counts(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    before = spool(place())
    before.append(rows(0, 1))
    crash(before)
    late = ObjectLog._create

    def overtaken(self: ObjectLog, entry: Any, payload: bytes) -> bool:
        monkeypatch.setattr(ObjectLog, "_create", late)
        before.append(rows(1, 1))
        return late(self, entry, payload)

    monkeypatch.setattr(ObjectLog, "_create", overtaken)
    other = spool(place(), clock=FakeClock())
    assert read(other, 0, other.roll()) == [0, 1]
    other.append(rows(2, 1))
    assert read(other, 0, other.roll()) == [0, 1, 2]
    other.close()


@pytest.mark.parametrize("arrives", [True, False])
def test_an_answer_that_is_lost_stores_the_rows_once(
    place: Make, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    made = spool(place())
    store: Any = kept_by(place)
    create, failures = store.create, [1, 2, 3]

    def lossy(self: Any, name: str, data: bytes) -> None:
        if failures:
            failures.pop()
            if arrives and len(failures) == 2:
                create(self, name, data)
            raise OSError("connection reset")
        create(self, name, data)

    monkeypatch.setattr(store, "create", lossy)
    made.append(rows(0, 2))
    assert not failures
    made.append(rows(2, 1))
    assert read(made, 0, made.roll()) == [0, 1, 2]
    made.close()


def test_a_store_that_stays_away_ends_the_query_with_the_reason(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spool(place())

    def away(self: Store, name: str, data: bytes) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(kept_by(place), "create", away)
    with pytest.raises(SpoolError, match=r"takes no writes: connection refused.*nothing is lost"):
        made.append(rows(0, 1))
    monkeypatch.undo()
    made.close()


@pytest.mark.rule("PIPE-3")
def test_a_store_that_is_away_while_the_index_is_read_costs_no_known_message(
    place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spool(place())
    (written,) = [batch for _, batch in rows(0, 3)]
    known = Known(made.ids, 1000)
    known.add(-1, written)
    known.flush(1)
    known = Known(made.ids, 1000)
    known.open()
    (more,) = [batch for _, batch in rows(3, 1)]
    known.add(-1, more)
    kept: Any = kept_by(place)
    read, failures = kept.read, [1, 2]

    def lossy(self: Any, *given: Any) -> bytes:
        if failures:
            raise OSError(f"connection reset {failures.pop()}")
        return bytes(read(self, *given))

    monkeypatch.setattr(kept, "read", lossy)
    known.flush(2)  # joins the first file with what is new
    assert not failures
    again = Known(made.ids, 1000)
    again.open()
    assert again.fresh(-1, written).num_rows == 0
    failures += range(100)
    with pytest.raises(SpoolError, match=r"the index of spool .* cannot be read: connection reset"):
        Known(made.ids, 1000).open()
    monkeypatch.undo()
    made.close()


def test_committed_segments_go_when_their_keys_are_in_the_index_and_numbers_go_on(place: Make) -> None:
    made = spool(place())
    for step in range(4):
        made.append(rows(step, 1))
    made.indexed = made.segments[1].number
    committed = made.segments[2].number
    made.commit(committed)
    assert len(made.kept()) == 1
    made.indexed = None
    made.commit(committed)
    assert made.kept() == []
    newest = made.roll()
    crash(made)
    again = spool(place(), clock=FakeClock())
    assert (again.meta.committed, again.roll()) == (committed, newest)
    assert read(again, committed, newest) == [3]
    assert again.bytes_after(committed) > 0
    assert list(dict(again.stored(0))) == [-1]
    again.close()


def test_a_lost_and_a_damaged_object_are_told(place: Make) -> None:
    made = spool(place())
    for step in range(3):
        made.append(rows(step, 1))
    first, second, third = made.segments
    store = place().below("log/")
    data = bytearray(store.read(module.key(third.number)))
    data[HEAD_BYTES + 70] ^= 0xFF
    store.write(module.key(third.number), bytes(data))
    with pytest.raises(SegmentDamaged):
        read(made, second.number, third.number)
    store.write(module.key(third.number), bytes(data[:50]))
    with pytest.raises(SegmentDamaged):
        read_object(ObjectLog(place()), made.meta.uuid, third)
    store.remove(module.key(second.number))
    with pytest.raises(DataLoss, match="lacks 1 objects"):
        made.located(0, third.number, complete=True)
    assert made.located(0, third.number, complete=False) == [first, third]
    with pytest.raises(DataLoss, match="not there"):
        read_object(ObjectLog(place()), made.meta.uuid, second)
    with pytest.raises(SpoolNotVisible):
        read_object(ObjectLog(place()), "another spool", second)
    made.close()


def test_an_object_whose_head_is_damaged_is_told_when_its_rows_are_asked_for(place: Make) -> None:
    made = spool(place())
    for step in range(3):
        made.append(rows(step, 1))
    (first, second, third), end = made.segments, made.roll()
    made.close()
    place().below("log/").write(module.key(second.number), b"")
    again = spool(place())
    with pytest.raises(SegmentDamaged, match=f"object {second.number} of the spool is damaged"):
        again.located(0, end, complete=True)
    assert again.located(0, end, complete=False) == [first, third]
    again.commit(first.number)
    again.append(rows(3, 1))
    assert read(again, end, again.roll()) == [3]
    again.close()
    place().below("committed/").write(module.key(again._log._term), b"")
    with pytest.raises(SpoolError, match=r"committed/\d+ is damaged"):
        spool(place())


def test_what_else_is_in_its_place_is_left_alone(place: Make) -> None:
    made = spool(place())
    made.append(rows(0, 2))
    end = made.roll()
    made.close()
    others = {"log/": "_SUCCESS", "lease/": ".DS_Store", "committed/": "x", "ids/": "notes"}
    for prefix, name in others.items():
        place().below(prefix).write(name, b"")
    again = spool(place())
    assert read(again, 0, end) == [0, 1]
    again.append(rows(2, 1))
    again.commit(end)
    again.close()
    assert all(place().below(prefix).read(name) == b"" for prefix, name in others.items())


def test_a_lease_that_cannot_be_read_is_waited_out(place: Make) -> None:
    made = spool(place())
    made.append(rows(0, 2))
    crash(made)
    place().below("lease/").write(module.key(made._log._term), b"{")
    clock = FakeClock()
    again = spool(place(), clock=clock)
    assert clock.now() >= 1000.0 + module.LEASE
    assert read(again, 0, again.roll()) == [0, 1]
    again.close()


def test_a_spool_of_a_later_version_is_refused(place: Make) -> None:
    place().write("meta", b'{"v": 2, "uuid": "u", "topic": "t", "channel": "c", "committed": 0, "more": []}')
    with pytest.raises(SpoolError, match="of a spool of version 2; this library knows version 1"):
        spool(place())


def test_another_topics_spool_is_refused(place: Make) -> None:
    ObjectLog(place()).make_meta(Meta("uuid", "t", "other"))
    with pytest.raises(SpoolError, match=r"belongs to t/other, not to t/c"):
        spool(place())


def test_numbers_are_not_given_again_when_a_checkpoint_knows_more(place: Make) -> None:
    made = spool(place())
    made.advance(41)
    made.append(rows(0, 1))
    assert made.roll() > 41
    made.close()
