"""Recordings in a directory and on an object store: what is durable, what is read, what is kept."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gnsq_lite.recording import Recording, lease, local, logs, objects
from gnsq_lite.recording import recording as module
from gnsq_lite.recording.errors import (
    DataLoss,
    RecordingDamaged,
    RecordingError,
    RecordingFenced,
    RecordingInUse,
    RecordingNotVisible,
)
from gnsq_lite.recording.files import Files
from tests.fakes import FakeClock
from tests.programs import python
from tests.recording.fakes import Crash, CrashingFiles, FailingSync, FullDisk
from tests.recording.places import FolderStore, batch, bodies

FIRST_US = 1_700_000_000_000_000


@pytest.mark.rule("PIPE-3")
def test_rows_are_numbered_from_1_over_restarts_and_read_by_their_numbers(make: Callable[..., Recording]) -> None:
    for begin in range(0, 12, 6):
        writer = make().take()
        writer.append([batch(begin, begin + 1), batch(begin + 2)])
        writer.append([batch(begin + 3, begin + 4, begin + 5)])
        assert writer.last == begin + 6
        writer.close()
    recording = make()
    (name,) = recording.names()
    assert recording.end() == {name: 12}
    assert bodies(recording) == list(range(12))
    for start in range(12):
        for end in range(start, 13):
            assert bodies(recording, start={name: start}, end={name: end}) == list(range(start, end))


def test_a_range_is_cut_into_spans_that_have_each_row_once(make: Callable[..., Recording]) -> None:
    writer = make().take()
    for n in range(0, 30, 3):
        writer.append([batch(n, n + 1, n + 2)])
    reader = make().reader(writer.name)
    for parts in (1, 2, 4, 7, 100):
        for start, end in ((0, 30), (4, 23), (5, 5), (29, 30)):
            groups = logs.share([(reader, start, end)], parts)
            assert len(groups) <= parts
            assert groups == logs.share([(make().reader(writer.name), start, end)], parts)
            spans = [span for group in groups for span in group]
            found = [int(b) for span in spans for _, one in make().read(span) for b in one["body"].to_pylist()]
            assert found == list(range(start, end))
    writer.close()


def test_a_second_writer_of_a_log_is_refused_and_another_log_is_free(make: Callable[..., Recording]) -> None:
    first = make().take()
    with pytest.raises(RecordingInUse, match="written by another process"):
        make().take(own=True)
    second = make().take()
    assert first.name != second.name
    second.append([batch(7)])
    first.append([batch(1)])
    assert sorted(bodies(make())) == [1, 7]
    first.close()
    third = make().take()
    assert third.name == first.name, "a recorder that starts takes over a free log"
    for writer in (second, third):
        writer.close()


def test_time_selects_rows_and_positions(make: Callable[..., Recording]) -> None:
    writer = make().take()
    for n in (5, 1, 9, 3, 7):
        writer.append([batch(n, n + 1)])
    writer.close()
    recording = make()

    def at(number: int) -> float:
        return (FIRST_US + number) / 1e6

    assert bodies(recording, since=at(7)) == [9, 10, 7, 8]
    assert bodies(recording, since=at(2), until=at(8)) == [5, 6, 2, 3, 4, 7]
    assert recording.at(FIRST_US + 10) == {writer.name: 5}
    assert recording.at(FIRST_US + 99) == {writer.name: 10}
    assert recording.at(0) == {}


def test_retention_removes_by_age_and_by_bytes_and_keeps_the_numbers(
    make: Callable[..., Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PACK_BYTES", 1)
    clock = FakeClock()
    recording = make(clock=clock)
    writer = recording.take()
    for n in range(6):
        writer.append([batch(n)])
        clock.advance(10.0)
    make_size = make().reader(writer.name).size() // 6
    assert recording.trim(45.0) > 0
    assert bodies(make()) == [1, 2, 3, 4, 5]
    recording.trim(0.0, 3 * make_size)
    assert bodies(make()) == [3, 4, 5]
    recording.trim(0.001)
    assert bodies(make()) == [5]
    writer.append([batch(6)])
    assert make().end() == {writer.name: 7}
    with pytest.raises(DataLoss, match="lacks rows"):
        bodies(make(), start={writer.name: 2})
    writer.close()


def test_a_retired_log_is_read_and_not_taken(make: Callable[..., Recording]) -> None:
    writer = make().take()
    writer.append([batch(1)])
    with pytest.raises(RecordingInUse):
        make().retire(writer.name)
    writer.close()
    make().retire(writer.name)
    with pytest.raises(RecordingError, match="no log"):
        make().retire("another")
    other = make().take()
    assert other.name != writer.name
    other.close()
    assert bodies(make()) == [1]


def test_a_recording_is_of_one_topic_and_of_one_kind_of_owner(make: Callable[..., Recording]) -> None:
    recording = make()
    with pytest.raises(RecordingError, match="recording of t/c, not of t/d"):
        recording.create("t", "d")
    with pytest.raises(RecordingError, match="recorders write the recording"):
        recording.create("t", "c", owned=True)
    recording.check_visible(recording.meta().uuid)
    with pytest.raises(RecordingNotVisible, match="another recording"):
        recording.check_visible("x")
    assert recording.committed() == {}
    recording.commit({"b": 2, "a": 1})
    assert make().committed() == {"a": 1, "b": 2}


def test_a_log_that_vanished_is_data_loss(make: Callable[..., Recording]) -> None:
    with pytest.raises(DataLoss, match="has no log gone"):
        bodies(make(), start={"gone": 3})


# -- a directory


@pytest.mark.parametrize("missing", [0, 1])
def test_a_pack_with_its_last_byte_is_full_and_one_byte_less_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    assert local.PACK_BYTES == 64 * 2**20
    log = local.LocalLog(tmp_path / "log")
    log.open()
    log.append([batch(0)])
    (pack,) = (tmp_path / "log").glob("pack-*")
    monkeypatch.setattr(local, "PACK_BYTES", pack.stat().st_size + missing)
    log.append([batch(1)])
    assert len(list((tmp_path / "log").glob("pack-*"))) == 2 - missing
    log.close()


@pytest.mark.rule("PIPE-2")
def test_a_crash_at_any_call_loses_no_row_that_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PACK_BYTES", 2500)
    at = 0
    while True:
        directory, files = tmp_path / str(at), CrashingFiles(at)
        stored: list[int] = []
        log = local.LocalLog(directory, files)
        try:
            log.open()
            for n in range(6):
                log.append([batch(n)])
                stored.append(n)
        except Crash:
            os.close(log._lock_fd)
        else:
            break
        again = local.LocalLog(directory)
        again.open()
        assert again.last in (len(stored), len(stored) + 1), "the row under way may be there"
        again.append([batch(77)])
        reader = local.LocalReader(directory)
        found = [int(b) for _, one in reader.read(reader.span(0, again.last)) for b in one["body"].to_pylist()]
        assert found[: len(stored)] == stored
        assert found[-1] == 77
        again.close()
        at += 1
    assert at >= 18


@pytest.mark.rule("PIPE-2")
def test_a_write_that_failed_leaves_no_row(tmp_path: Path) -> None:
    disk = FullDisk(4000)
    log = local.LocalLog(tmp_path / "a", disk)
    log.open()
    with pytest.raises(OSError, match="No space"):
        log.append([batch(*range(1000))])
    assert local.LocalReader(tmp_path / "a").bounds() == logs.Bounds(1, 0)
    disk.room = 10**9
    log.append([batch(1)])
    log.close()
    failing = local.LocalLog(tmp_path / "a", FailingSync({1}))
    failing.open()
    with pytest.raises(OSError, match="Input/output"):
        failing.append([batch(2)])
    failing.append([batch(3)])
    assert [int(b) for b in _read(tmp_path / "a", 2)] == [1, 3]
    failing.close()


def _read(directory: Path, last: int) -> list[bytes]:
    reader = local.LocalReader(directory)
    return [b for _, one in reader.read(reader.span(0, last)) for b in one["body"].to_pylist()]


def test_a_reader_sees_no_row_that_is_not_synced(tmp_path: Path) -> None:
    class Looking(Files):
        seen: list[int] = []  # noqa: RUF012

        def sync(self, fd: int) -> None:
            self.seen.append(local.LocalReader(tmp_path / "a").bounds().last)
            super().sync(fd)

    log = local.LocalLog(tmp_path / "a", Looking())
    log.open()
    for n in range(3):
        log.append([batch(n)])
    assert Looking.seen == [0, 1, 2]
    log.close()


@pytest.mark.rule("PIPE-2")
def test_damage_to_rows_that_were_stored_is_reported_by_reader_and_writer(tmp_path: Path) -> None:
    log = local.LocalLog(tmp_path / "a")
    log.open()
    for n in range(4):
        log.append([batch(n)])
    log.close()
    (pack,) = (tmp_path / "a").glob("pack-*")
    data = pack.read_bytes()
    pieces = list(local.LocalReader(tmp_path / "a").pieces(0, 4))
    for piece in pieces:
        for place in (piece.place + 8, piece.place + 64 + piece.size // 3):
            pack.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
            with pytest.raises(RecordingDamaged):
                _read(tmp_path / "a", 4)
    pack.write_bytes(data[: pieces[2].place + 10])
    with pytest.raises(RecordingDamaged, match="finished at nsqd"):
        local.LocalLog(tmp_path / "a").open()


# -- an object store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], FolderStore]:
    pytest.importorskip("obstore")
    monkeypatch.setenv("GNSQ_TEST_FOLDER", str(tmp_path / "bucket"))
    monkeypatch.setattr(lease, "LEASE", 0.4)
    return lambda: FolderStore("s3://bucket/r", {})


@pytest.mark.rule("PIPE-2")
def test_a_recorder_that_was_paused_finds_the_fence_and_stores_nothing_more(store: Callable[[], FolderStore]) -> None:
    old = objects.ObjectLog(store(), "a")
    old.open()
    old.append([batch(0)])
    old.lease._closing.set()  # it does not renew its lease any more
    for number in range(1, 4):
        new = objects.ObjectLog(store(), "a")
        new.open(wait=30.0)
        with pytest.raises(RecordingFenced, match="taken over"):
            old.append([batch(99)])
        new.append([batch(number)])
        new.lease._closing.set()
        old = new
    reader = objects.ObjectReader(store(), "a")
    assert reader.bounds() == logs.Bounds(1, 4)
    found = [int(b) for _, one in reader.read(reader.span(0, 4)) for b in one["body"].to_pylist()]
    assert found == [0, 1, 2, 3]


def test_after_a_fork_recordings_on_object_stores_raise_an_error() -> None:
    pytest.importorskip("obstore")
    done = python("""
import os, signal
from gnsq_lite.recording import Recording
from gnsq_lite.recording.errors import RecordingError

def opened():
    settings = {"endpoint": "http://127.0.0.1:1", "allowHttp": "true", "accessKeyId": "a", "secretAccessKey": "b"}
    return Recording("s3://bucket/recording", settings)

recording = opened()
recording.check()
if os.fork() == 0:
    signal.alarm(20)  # a request in the child waits for ever
    for call in (recording.check, recording.names, recording.take, opened().meta, lambda: opened().create("t", "c")):
        try:
            call()
        except RecordingError as error:
            print(error, flush=True)
    os._exit(0)
print(os.wait()[1], flush=True)
recording.check()
""")
    assert (done.returncode, done.stderr) == (0, b"")
    *errors, status = done.stdout.decode().splitlines()
    assert (len(errors), status) == (5, "0")
    assert all("open recordings after the fork" in error for error in errors)


def test_a_recorder_looks_at_all_leases_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("GNSQ_TEST_FOLDER", str(tmp_path / "bucket"))
    monkeypatch.setattr(module.objectstore, "ObjectStore", FolderStore)
    monkeypatch.setattr(lease, "LOOK", 0.02)
    recording = Recording("s3://bucket/recording")
    recording.create("t", "c")
    writers = [objects.ObjectLog(FolderStore("s3://bucket/recording", {}), f"{number:02}") for number in range(20)]
    for writer in writers:
        writer.open()
        writer.lease._closing.set()  # this test renews the leases
    ended = threading.Event()

    def renew() -> None:  # in the reverse order of names: one after another, each look takes nearly a round
        for writer in itertools.cycle(reversed(writers)):
            if ended.wait(0.05):
                return
            writer.lease._store.write(f"{writer.lease.term:016d}", writer.lease._content())

    renewing = threading.Thread(target=renew)
    renewing.start()
    begun = time.monotonic()
    fresh = recording.take()
    assert time.monotonic() - begun < 10.0  # 1 s; one after another, the looks would take 20 s
    assert fresh.name not in {f"{number:02}" for number in range(20)}
    ended.set()
    renewing.join()
    for log in (*writers, fresh):
        log.close()


@pytest.mark.rule("PIPE-3")
def test_flushes_are_merged_without_a_change_of_their_numbers(
    store: Callable[[], FolderStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = objects.ObjectLog(store(), "a")
    log.open()
    for n in range(5):
        log.append([batch(n)])
    before = objects.ObjectReader(store(), "a")
    span = before.span(0, 5)
    monkeypatch.setattr(objects, "MERGED_BYTES", 1)
    log.append([batch(5)])
    names = store().below("logs/a/").names()
    assert [name for name in names if name.startswith("merged/")] == [f"merged/{1:016d}-{5:016d}"]
    assert len([name for name in names if name.startswith("rows/")]) == 2, "the fence and the newest flush"
    for reader in (before, objects.ObjectReader(store(), "a")):
        for end in range(6):
            part = replace(span, end=end)
            assert [int(b) for _, one in reader.read(part) for b in one["body"].to_pylist()] == list(range(end))
        assert reader.bounds() == logs.Bounds(1, 6)
    log.close()
    again = objects.ObjectLog(store(), "a")
    again.open()
    assert again.last == 6
    again.close()


@pytest.mark.parametrize("missing", [0, 1])
def test_writes_are_merged_at_their_last_byte_and_not_one_byte_before(
    store: Callable[[], FolderStore], monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    assert objects.MERGED_BYTES == 64 * 2**20
    log = objects.ObjectLog(store(), "a")
    log.open()
    sizes = [log.append([batch(0)]) for _ in range(3)]
    monkeypatch.setattr(objects, "MERGED_BYTES", sum(sizes) + sizes[0] + missing)
    log.append([batch(0)])
    assert len([name for name in store().below("logs/a/").names() if name.startswith("merged/")]) == 1 - missing
    log.close()


def test_an_object_that_is_damaged_is_reported(store: Callable[[], FolderStore]) -> None:
    log = objects.ObjectLog(store(), "a")
    log.open()
    log.append([batch(1, 2)])
    log.close()
    rows = store().below("logs/a/rows/")
    name = max(rows.names())
    data = rows.read(name)
    rows.write(name, data[:-100] + bytes(100))
    reader = objects.ObjectReader(store(), "a")
    with pytest.raises(RecordingDamaged):
        list(reader.read(reader.span(0, 2)))
    rows.write(name, data[: len(data) // 2])
    with pytest.raises(RecordingDamaged):
        objects.ObjectReader(store(), "a").bounds()


def test_a_place_with_files_of_another_program_is_refused_by_name_and_stays_unchanged(
    place: str, tmp_path: Path
) -> None:
    recording = Recording(place)
    recording._root.write("spool.json", b"{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecordingError, match=r"is no recording: it has no meta, but spool\.json"):
        recording.create("t", "c")
    assert sorted(tmp_path.rglob("*")) == before
    recording._root.remove("spool.json")
    recording._root.write(".hidden", b"")
    recording._root.write("LOCK", b"")
    recording.create("t", "c")
    recording._root.write("spool.json", b"{}")
    recording.create("t", "c")


def test_a_missing_bucket_is_an_error_at_once() -> None:
    pytest.importorskip("obstore")

    class NoBucket(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), NoBucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        storage = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true", "region": "r"}
        storage |= {"access_key_id": "a", "secret_access_key": "b"}
        recording = Recording("s3://absent/x", storage)
        calls: list[Callable[[], object]] = [lambda: recording.create("t", "c"), recording.meta, recording.names]
        for call in calls:
            with pytest.raises(RecordingError, match="the store has no such bucket"):
                call()
    finally:
        server.shutdown()
        server.server_close()
