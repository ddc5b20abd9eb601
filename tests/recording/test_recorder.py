"""Stored first, finished then: the order, and what happens when storing fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording import lease
from gnsq_lite.recording import recorder as module
from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.recording import Recording
from tests.programs import wait_for
from tests.recording.fakes import FakeMessage, FakeReceiver, FullDisk


@contextmanager
def recording_to(
    directory: Path, files: Files | None = None, make_room: Callable[[], int] = lambda: 0, **more: Any
) -> Iterator[tuple[Recorder, FakeReceiver]]:
    recording = Recording(str(directory), files=files)
    recording.create("t", "c")
    writer = recording.take()
    receiver = FakeReceiver()
    options = RecorderOptions(topic="t", channel="c", client={"nsqd_tcp_addresses": ["n"]}, **more)
    recorder = Recorder(writer, recording.reader(writer.name), receiver, options, make_room=make_room)
    recorder.start()
    try:
        yield recorder, receiver
    finally:
        recorder.stop(5.0)


def deliver(receiver: FakeReceiver, *messages: FakeMessage) -> list[str | None]:
    for message in messages:
        receiver.take(message)
    wait_for(lambda: all(m.answer for m in messages))
    return [m.answer for m in messages]


def stored(directory: Path) -> list[bytes]:
    return [body for batch in Recording(str(directory)).batches() for body in batch["body"].to_pylist()]


@pytest.mark.rule("PIPE-2")
def test_a_message_is_finished_only_after_its_sync(tmp_path: Path) -> None:
    class Watching(Files):
        synced = 0

        def sync(self, fd: int) -> None:
            time.sleep(0.02)
            super().sync(fd)
            Watching.synced += 1

    seen: list[int] = []
    with recording_to(tmp_path, Watching()) as (_, receiver):
        before = Watching.synced
        message = FakeMessage(1)
        message.on_finish = lambda: seen.append(Watching.synced - before)
        deliver(receiver, message)
    assert seen == [1]


def test_rows_are_in_the_order_of_arrival_also_of_each_topic_partition(tmp_path: Path) -> None:
    with recording_to(tmp_path / "plain") as (_, receiver):
        assert set(deliver(receiver, *[FakeMessage(n, b"%d" % n) for n in range(500)])) == {"FIN"}
    assert stored(tmp_path / "plain") == [b"%d" % n for n in range(500)]
    with recording_to(tmp_path / "youzan", include_youzan=True) as (_, receiver):
        deliver(receiver, *[FakeMessage(n, b"%d" % n, partition=n % 2) for n in range(40)])
    found = [row for batch in Recording(str(tmp_path / "youzan")).batches() for row in batch.to_pylist()]
    for partition in range(2):
        bodies = [int(row["body"]) for row in found if row["partition"] == partition]
        assert bodies == list(range(partition, 40, 2))


def test_a_full_disk_sends_the_messages_back_pauses_says_so_and_recovers(tmp_path: Path) -> None:
    files = FullDisk(10**6)
    with recording_to(tmp_path, files) as (recorder, receiver):
        files.room = 0
        assert deliver(receiver, FakeMessage(1)) == ["REQ"], "never FIN for what is not stored"
        wait_for(lambda: "No space left" in recorder.trouble())
        time.sleep(2.5)
        assert receiver.calls == ["pause"], "RDY stays 0 while probes find no room"
        files.room = 10**6
        wait_for(lambda: receiver.calls[-1:] == ["resume"])
        assert deliver(receiver, FakeMessage(1, attempts=2)) == ["FIN"]
        recorder.check()
        assert recorder.trouble() == ""
    assert stored(tmp_path) == [b"body"]


def test_a_disk_that_stays_full_ends_the_recorder_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 0.5)
    files = FullDisk(10**6)
    with recording_to(tmp_path, files) as (recorder, receiver):
        files.room = 0
        deliver(receiver, FakeMessage(1))
        wait_for(lambda: recorder._error is not None)
        with pytest.raises(RecordingError, match=r"No space left.*no row is lost"):
            recorder.check()


def test_a_full_disk_gets_room_by_what_the_owner_gives_up(tmp_path: Path) -> None:
    files = FullDisk(10**6)

    def make_room() -> int:
        files.room = 10**6
        return 1

    with recording_to(tmp_path, files, make_room) as (recorder, receiver):
        files.room = 0
        assert deliver(receiver, FakeMessage(1)) == ["REQ"]
        assert deliver(receiver, FakeMessage(1, attempts=2)) == ["FIN"]
        assert receiver.calls == []
        recorder.check()


def test_a_failed_recorder_sends_back_waiting_and_new_messages(tmp_path: Path) -> None:
    class Breaking(Files):
        broken = False

        def sync(self, fd: int) -> None:
            if self.broken:
                waiting.extend(FakeMessage(n) for n in range(1, 4))
                for message in waiting:
                    receiver.take(message)
                raise RuntimeError("it broke")
            super().sync(fd)

    waiting: list[FakeMessage] = []
    files = Breaking()
    with recording_to(tmp_path, files) as (recorder, receiver):
        files.broken = True
        assert deliver(receiver, FakeMessage(0)) == ["REQ"]
        wait_for(lambda: {m.answer for m in waiting} == {"REQ"})
        assert receiver.calls == ["pause"]
        assert deliver(receiver, FakeMessage(9)) == ["REQ"]
        with pytest.raises(RuntimeError, match="it broke"):
            recorder.check()


class Slow(Files):
    """A disk that stands still while *goes_on* is not set."""

    def __init__(self, goes_on: threading.Event) -> None:
        super().__init__()
        self._goes_on = goes_on

    def sync(self, fd: int) -> None:
        assert self._goes_on.wait(30)
        super().sync(fd)


def test_a_flush_has_no_more_bytes_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 65_536)
    go_on = threading.Event()
    go_on.set()
    with recording_to(tmp_path, Slow(go_on)) as (recorder, receiver):
        go_on.clear()
        messages = [FakeMessage(n, bytes(size)) for n, size in enumerate([1, *[20_000] * 10, 100_000])]
        for message in messages:
            receiver.take(message)
        go_on.set()
        wait_for(lambda: all(m.answer == "FIN" for m in messages))
        reader = recorder._reader
        sizes = [[len(b) for b in one["body"].to_pylist()] for _, one in reader.read(reader.span(0, 12))]
    assert [size for one in sizes for size in one] == [1, *[20_000] * 10, 100_000]
    assert max(sum(one) for one in sizes[:-1]) <= 65_536
    assert sizes[-1] == [100_000]


def test_what_waits_for_a_slow_disk_is_backlog_still(tmp_path: Path) -> None:
    go_on = threading.Event()
    go_on.set()
    with recording_to(tmp_path, Slow(go_on)) as (recorder, receiver):
        recorder.expect(1)
        assert not recorder.holds_backlog()
        go_on.clear()
        messages = [FakeMessage(n, timestamp_ns=n) for n in range(2)]
        for message in messages:
            receiver.take(message)
        wait_for(recorder.holds_backlog)
        go_on.set()
        wait_for(lambda: not recorder.holds_backlog())
        assert {m.answer for m in messages} == {"FIN"}


def test_a_log_that_was_closed_after_a_slow_stop_has_only_its_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 1)
    go_on = threading.Event()
    go_on.set()
    with recording_to(tmp_path, Slow(go_on)) as (recorder, receiver):
        go_on.clear()
        old = [FakeMessage(n, b"old") for n in range(3)]
        for message in old:
            receiver.take(message)
        wait_for(lambda: recorder.in_flight() == 2)
        threading.Timer(0.3, go_on.set).start()  # stop() waits for the running write before it closes the log
        assert recorder.stop(0.1) is False
        assert "before all received messages were stored" in caplog.text
        next_log = Recording(str(tmp_path)).take()
        assert next_log.name == recorder.log.name
        next_log.append([(-1, to_batch([FakeMessage(9, b"new")], False))])
        wait_for(lambda: [m.answer for m in old] == ["FIN", "REQ", "REQ"])
        with pytest.raises(RecordingError, match="is closed"):
            recorder.check()
        next_log.close()
    assert stored(tmp_path) == [b"old", b"new"]


def test_stop_returns_whether_the_recorder_has_stored_everything(tmp_path: Path) -> None:
    with recording_to(tmp_path) as (recorder, receiver):
        receiver.take(FakeMessage(0, b"x"))
        assert recorder.stop(30.0) is True
    assert stored(tmp_path) == [b"x"]


def test_what_ends_the_receiver_ends_the_recorder(tmp_path: Path) -> None:
    with recording_to(tmp_path) as (recorder, receiver):
        receiver.error = RuntimeError("TLS is not granted")
        with pytest.raises(RuntimeError, match="TLS"):
            recorder.check()


def test_a_message_sent_again_is_finished_and_not_stored_twice(tmp_path: Path) -> None:
    with recording_to(tmp_path) as (recorder, receiver):
        for message in (FakeMessage(1), FakeMessage(1, attempts=2), FakeMessage(1, attempts=2, nsqd="other:4150")):
            assert deliver(receiver, message) == ["FIN"]
        assert recorder.dropped() == 1
    assert len(stored(tmp_path)) == 2, "another nsqd's message of the same id is another message"


@pytest.mark.parametrize("indexed", [False, True])
def test_a_message_sent_again_after_a_restart_is_recognised_also_when_its_row_is_gone(
    tmp_path: Path, indexed: bool
) -> None:
    with recording_to(tmp_path) as (recorder, receiver):
        deliver(receiver, FakeMessage(1))
        if indexed:
            recorder.index()
    with recording_to(tmp_path) as (_, receiver):
        deliver(receiver, FakeMessage(2, b"two"))
    if indexed:
        Recording(str(tmp_path)).trim(1e-9)
        assert stored(tmp_path) == [b"two"]
    with recording_to(tmp_path) as (recorder, receiver):
        assert deliver(receiver, FakeMessage(1, attempts=2), FakeMessage(2, attempts=2)) == ["FIN", "FIN"]
        assert recorder.dropped() == 2


def test_the_index_is_written_before_many_rows_are_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNINDEXED", 5)
    with recording_to(tmp_path) as (recorder, receiver):
        for number in range(12):
            deliver(receiver, FakeMessage(number))
        assert recorder.indexed in range(7, 13)


def test_back_pressure_is_on_bytes_that_the_owner_has_not_taken(tmp_path: Path) -> None:
    with recording_to(tmp_path, max_waiting=65_536) as (recorder, receiver):
        deliver(receiver, FakeMessage(1, b"x" * 70_000))
        wait_for(lambda: receiver.paused)
        recorder.hand_over(1)
        wait_for(lambda: not receiver.paused)
        assert recorder.waiting_bytes() == 0
    recording = Recording(str(tmp_path))
    writer = recording.take()
    options = RecorderOptions(topic="t", channel="c", client={"nsqd_tcp_addresses": ["n"]}, max_waiting=65_536)
    again = Recorder(writer, recording.reader(writer.name), FakeReceiver(), options)
    again.start(0)
    assert again.waiting_bytes() > 70_000, "the query restarts before the row"
    again.hand_over(1)
    assert again.waiting_bytes() == 0
    assert again.stop(5.0)


def test_stop_ends_in_its_time_while_the_log_cannot_be_closed(tmp_path: Path) -> None:
    answered = threading.Event()
    with recording_to(tmp_path) as (recorder, _):
        close = recorder.log.close

        def close_when_answered() -> None:
            answered.wait(100.0)
            close()

        recorder.log.close = close_when_answered  # type: ignore[method-assign]
        begun = time.monotonic()
        assert recorder.stop(0.1) is False
        assert time.monotonic() - begun < 50.0
        answered.set()
