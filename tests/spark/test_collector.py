"""Stored first, finished then: the order, and what happens when storing fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.recording.files import Files
from gnsq_lite.spark import collector as module
from gnsq_lite.spark.collector import Collector, SpoolFailed
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.places import open_spool
from gnsq_lite.spark.spool import Spool, locate
from tests.spark.fakes import FakeMessage, FakeReceiver, FullDisk, SmallDisk


def options(directory: Path, **more: str) -> SourceOptions:
    base = {"topic": "t", "channel": "c", "spoolDir": str(directory), "nsqdTCPAddresses": "n"}
    return parse(SourceOptions, {**base, **more})


def until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


@contextmanager
def collecting(directory: Path, files: Files | None = None, **more: str) -> Iterator[tuple[Collector, FakeReceiver]]:
    given = options(directory, **more)
    receiver = FakeReceiver()
    collector = Collector(open_spool(directory, given, files or Files()), receiver, given)
    collector.start()
    try:
        yield collector, receiver
    finally:
        collector.stop(5.0)


def stored(spool: Spool) -> list[bytes]:
    batches = [batch for _, path in locate(spool.directory, 0, spool.newest) for batch in _read(path)]
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def _read(path: Path) -> list[Any]:
    from gnsq_lite.spark.segments import scan_file

    return scan_file(path).batches


@pytest.mark.rule("PIPE-2")
def test_a_message_is_finished_only_after_its_sync(tmp_path: Path) -> None:
    class Watching(Files):
        synced = 0

        def sync(self, fd: int) -> None:
            time.sleep(0.02)
            super().sync(fd)
            Watching.synced += 1

    seen: list[int] = []
    with collecting(tmp_path, Watching()) as (_, receiver):
        before = Watching.synced
        message = FakeMessage(1)
        message.on_finish = lambda: seen.append(Watching.synced - before)
        receiver.take(message)
        until(lambda: message.answer is not None)
    assert seen == [1]


def test_rows_are_in_the_order_of_arrival(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, receiver):
        messages = [FakeMessage(n, b"%d" % n) for n in range(500)]
        for message in messages:
            receiver.take(message)
        until(lambda: all(m.answer == "FIN" for m in messages))
        collector.spool.roll()
        assert stored(collector.spool) == [b"%d" % n for n in range(500)]


def test_a_full_disk_sends_the_messages_back_pauses_and_recovers(tmp_path: Path) -> None:
    files = FullDisk(10**6)
    with collecting(tmp_path, files) as (collector, receiver):
        files.room = 0
        refused = FakeMessage(1)
        receiver.take(refused)
        until(lambda: refused.answer is not None)
        assert refused.answer == "REQ", "never FIN for what is not stored"
        files.room = 10**6
        until(lambda: receiver.calls[-1:] == ["resume"])
        again = FakeMessage(1, attempts=2)
        receiver.take(again)
        until(lambda: again.answer == "FIN")
        collector.check()
        collector.spool.roll()
        assert stored(collector.spool) == [b"body"]


def test_a_disk_that_stays_full_ends_the_query_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FAILURES", 2)
    files = FullDisk(10**6)
    with collecting(tmp_path, files) as (collector, receiver):
        files.room = 0
        for number in range(2):
            message = FakeMessage(number)
            receiver.take(message)
            until(lambda m=message: m.answer == "REQ")  # type: ignore[misc]
        until(lambda: collector._error is not None)
        with pytest.raises(SpoolFailed, match=r"No space left.*nothing is lost"):
            collector.check()


def test_a_spool_that_failed_gives_back_what_waits_and_what_comes_until_the_query_hears_of_it(tmp_path: Path) -> None:
    class Breaking(Files):
        def sync(self, fd: int) -> None:
            waiting.extend(FakeMessage(n) for n in range(1, 4))
            receiver.calls.clear()
            for message in waiting:
                receiver.take(message)
            raise RuntimeError("it broke")

    waiting: list[FakeMessage] = []
    files = Files()
    with collecting(tmp_path, files) as (collector, receiver):
        collector.spool._files = Breaking()  # type: ignore[union-attr]
        first = FakeMessage(0)
        receiver.take(first)
        until(lambda: first.answer == "REQ" and {m.answer for m in waiting} == {"REQ"})
        assert receiver.calls == ["pause"]
        late = FakeMessage(9)
        receiver.take(late)
        assert late.answer == "REQ"
        with pytest.raises(RuntimeError, match="it broke"):
            collector.check()
        collector.spool._files = files  # type: ignore[union-attr]


class Slow(Files):
    """A disk that stands still while *goes_on* is not set."""

    def __init__(self, goes_on: threading.Event) -> None:
        super().__init__()
        self._goes_on = goes_on

    def sync(self, fd: int) -> None:
        assert self._goes_on.wait(30)
        super().sync(fd)


def test_a_write_has_no_more_bytes_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 65_536)
    held = threading.Event()
    slow = Slow(held)
    held.set()
    with collecting(tmp_path, slow) as (collector, receiver):
        held.clear()
        messages = [FakeMessage(n, bytes(size)) for n, size in enumerate([1, *[20_000] * 10, 100_000])]
        for message in messages:
            receiver.take(message)
        held.set()
        until(lambda: all(m.answer == "FIN" for m in messages))
        collector.spool.roll()
        bodies = [
            [len(b) for b in batch["body"].to_pylist()]
            for s in collector.spool.segments
            for batch in _read(tmp_path / s.name)
        ]
    assert [size for sizes in bodies for size in sizes] == [1, *[20_000] * 10, 100_000]
    assert max(sum(sizes) for sizes in bodies[:-1]) <= 65_536
    assert bodies[-1] == [100_000]


def test_a_commit_makes_room_for_itself_or_says_what_failed(tmp_path: Path) -> None:
    files = SmallDisk(10**6)
    with collecting(tmp_path, files, spoolRetentionMs="3600000") as (collector, receiver):
        for step in range(2):
            deliver(receiver, range(step, step + 1))
            with collector.lock:
                end = collector.spool.roll()
            files.room = files.room if step == 0 else 0
            collector.commit(end)
        assert collector.spool.meta.committed == end == 2
        files.room = 10**6
        deliver(receiver, range(9, 10))
        with collector.lock:
            end = collector.spool.roll()
            collector.spool.make_room()
        files.room = 0
        with pytest.raises(SpoolFailed, match=r"what is committed cannot be noted: .*No space left"):
            collector.commit(end)
        files.room = 10**6
        collector.commit(end)


def deliver(receiver: FakeReceiver, numbers: range) -> list[FakeMessage]:
    messages = [FakeMessage(n, b"%d" % n) for n in numbers]
    for message in messages:
        receiver.take(message)
    until(lambda: all(m.answer for m in messages))
    return messages


@pytest.mark.parametrize("restart", [False, True])
def test_a_disk_full_of_committed_segments_heals_at_once_and_at_a_start(tmp_path: Path, restart: bool) -> None:
    files = SmallDisk(10**6)
    with collecting(tmp_path, files, spoolRetentionMs="3600000") as (collector, receiver):
        for step in range(5):
            deliver(receiver, range(20 * step, 20 * step + 20))
            with collector.lock:
                end = collector.spool.roll()
            collector.commit(end)
        assert len(collector.spool.kept()) == 5
        files.room = 0
        if not restart:
            deliver(receiver, range(100, 101))  # goes back; the disk has room then
            until(lambda: collector.spool.kept() == [])
            assert {m.answer for m in deliver(receiver, range(101, 103))} == {"FIN"}
            collector.check()
    if restart:
        with collecting(tmp_path, files) as (collector, receiver):
            assert collector.spool.kept() == []
            assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "a mapped file takes room though removed"
            messages = deliver(receiver, range(99, 102))
            assert {m.answer for m in messages} == {"FIN"}
            assert collector.stored == 3
            collector.spool.roll()
            assert sum(s.rows for s in collector.spool.segments) == 2, "99 is known though its segment is gone"


def test_what_waits_for_a_slow_disk_is_backlog_still(tmp_path: Path) -> None:
    go_on = threading.Event()
    slow = Slow(go_on)
    go_on.set()
    with collecting(tmp_path, slow) as (collector, receiver):
        collector.expect(1)
        assert not collector.holds_backlog()
        go_on.clear()
        messages = [FakeMessage(n, timestamp_ns=n) for n in range(2)]
        for message in messages:
            receiver.take(message)
        until(collector.holds_backlog)
        go_on.set()
        until(lambda: not collector.holds_backlog())
        assert {m.answer for m in messages} == {"FIN"}


def test_committed_segments_do_not_stay(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, receiver):
        for step in range(module.KEPT_SEGMENTS + 10):
            deliver(receiver, range(step, step + 1))
            with collector.lock:
                end = collector.spool.roll()
            collector.commit(end)
        assert len(collector.spool.kept()) < 10
        again = deliver(receiver, range(5, 6))
        assert again[0].answer == "FIN"
        assert collector.spool.roll() == module.KEPT_SEGMENTS + 10, "known though its segment is gone"


def test_the_index_is_written_before_many_segments_are_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNINDEXED", 5)
    with collecting(tmp_path) as (collector, receiver):
        for step in range(12):
            deliver(receiver, range(step, step + 1))
            with collector.lock:
                end = collector.spool.roll()
        assert collector.spool.indexed in range(end - 5, end + 1), "no batch has them yet"


def test_what_ends_the_receiver_ends_the_query(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, receiver):
        receiver.error = RuntimeError("TLS is not granted")
        with pytest.raises(RuntimeError, match="TLS"):
            collector.check()


def test_a_message_sent_again_is_finished_and_not_stored_twice(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, receiver):
        for message in (FakeMessage(1), FakeMessage(1, attempts=2), FakeMessage(1, attempts=2, nsqd="other:4150")):
            receiver.take(message)
            until(lambda m=message: m.answer == "FIN")  # type: ignore[misc]
        collector.spool.roll()
        assert len(stored(collector.spool)) == 2, "another nsqd's message of the same id is another message"


def test_a_message_sent_again_after_a_restart_is_recognised(tmp_path: Path) -> None:
    with collecting(tmp_path) as (_, receiver):
        first = FakeMessage(1)
        receiver.take(first)
        until(lambda: first.answer == "FIN")
    with collecting(tmp_path) as (collector, receiver):
        again = FakeMessage(1, attempts=2)
        receiver.take(again)
        until(lambda: again.answer == "FIN")
        collector.spool.roll()
        assert len(stored(collector.spool)) == 1


def test_without_dedup_a_message_sent_again_is_stored_again(tmp_path: Path) -> None:
    with collecting(tmp_path, dedup="false") as (collector, receiver):
        for message in (FakeMessage(1), FakeMessage(1, attempts=2)):
            receiver.take(message)
            until(lambda m=message: m.answer == "FIN")  # type: ignore[misc]
        collector.spool.roll()
        assert len(stored(collector.spool)) == 2


def test_back_pressure_is_on_bytes_no_batch_has_never_on_uncommitted_ones(tmp_path: Path) -> None:
    """A cap on uncommitted bytes deadlocks: Spark commits a batch only when it makes the next one."""
    with collecting(tmp_path, maxSpoolBytes="64k") as (collector, receiver):
        receiver.take(FakeMessage(1, b"x" * 70_000))
        until(lambda: receiver.paused)
        with collector.lock:
            end = collector.spool.roll()
        collector.hand_over(end)  # in a batch, not committed
        until(lambda: not receiver.paused)
        assert collector.spool.meta.committed == 0


@pytest.mark.rule("PIPE-5")
def test_topic_partitions_are_kept_apart_and_in_order(tmp_path: Path) -> None:
    with collecting(tmp_path) as (collector, receiver):
        messages = [FakeMessage(n, b"%d" % n, partition=n % 2) for n in range(20)]
        for message in messages:
            receiver.take(message)
        until(lambda: all(m.answer == "FIN" for m in messages))
        collector.spool.roll()
        for segment in collector.spool.segments:
            values = [int(b) for batch in _read(tmp_path / segment.name) for b in batch.column("body").to_pylist()]
            assert values == sorted(values)
            assert {value % 2 for value in values} == {segment.partition}
