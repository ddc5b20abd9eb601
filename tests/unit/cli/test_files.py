"""Files of messages: what a failed write, another process and wrong names do to them."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.cli import files
from gnsq_lite.cli.files import Layout, TopicFile, recover
from gnsq_lite.cli.to_file import FileWriter, Hup, looking
from gnsq_lite.errors import OptionError


def layout_in(folder: Path, **options: Any) -> Layout:
    """Return a layout whose files grow apart, under names of their own, unless the options say otherwise."""
    settings = {"datetime_format": "day", "host_identifier": "host", "rotate_interval": 1e9, **options}
    return Layout(output_dir=folder, work_dir=folder, **settings)


def appending_in(folder: Path, **options: Any) -> Layout:
    return layout_in(folder, rotate_interval=0.0, **options)


def lines_of(folder: Path) -> list[bytes]:
    whole = [path.read_bytes() for path in sorted(folder.iterdir())]
    return b"".join(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in whole).splitlines()


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Have the next write take *after* bytes, and the one after it none."""
    whole = files._write_all

    def partly(file: Any, data: bytes) -> None:
        whole(file, data[:after])
        monkeypatch.setattr(files, "_write_all", whole)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_write_all", partly)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_a_full_disk_leaves_no_torn_line_before_the_ones_that_follow(
    compress: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TopicFile(layout_in(tmp_path, gzip=compress), "topic")
    file.write([b"one"])
    fill_the_disk(monkeypatch, after=5)
    with pytest.raises(OSError, match="No space"):
        file.write([b"two", b"three"])
    file.write([b"two", b"three"])
    file.close()
    assert lines_of(tmp_path) == [b"one", b"two", b"three"]


def test_what_a_full_disk_has_not_taken_is_not_written_by_a_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TopicFile(layout_in(tmp_path), "topic")
    fill_the_disk(monkeypatch, after=2)
    with pytest.raises(OSError, match="No space"):
        file.write([b"one"])
    file.close()
    assert list(tmp_path.iterdir()) == []  # an empty file is no file


def test_a_file_that_cannot_be_cut_is_left_to_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def __init__(self, file: Any) -> None:
            self._file = file

        def truncate(self, size: int) -> int:
            raise OSError(errno.EIO, "Input/output error")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    file = TopicFile(layout_in(tmp_path), "topic")
    file.write([b"one"])
    file._file = Stuck(file._file)  # type: ignore[assignment]
    fill_the_disk(monkeypatch, after=2)
    with pytest.raises(OSError, match="No space"):
        file.write([b"two"])
    file.write([b"two"])
    file.close()
    recover(layout_in(tmp_path))
    assert sorted(lines_of(tmp_path)) == [b"one", b"two"]


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    class Short:
        taken = b""

        def write(self, data: memoryview) -> int:
            self.taken += bytes(data[:3])
            return min(3, len(data))

    file: Any = Short()
    files._write_all(file, b"0123456789")
    assert file.taken == b"0123456789"


def test_a_file_that_recovery_removed_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def too_late(file: Any, how: int) -> None:
        monkeypatch.setattr(files.fcntl, "flock", lock)
        recover(layout_in(tmp_path))  # another process starts: it finds an empty file that nobody holds
        lock(file, how)

    file = TopicFile(layout_in(tmp_path), "topic")
    monkeypatch.setattr(files.fcntl, "flock", too_late)
    file.write([b"one"])
    file.close()
    assert lines_of(tmp_path) == [b"one"]


def test_recovery_leaves_a_file_that_is_finished_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, final = layout_in(tmp_path).part("a.log"), tmp_path / "a.log"
    part.write_bytes(b"one\n")
    lock = fcntl.flock

    def too_late(file: Any, how: int) -> None:
        os.rename(part, final)
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", too_late)
    assert recover(layout_in(tmp_path)) == []
    assert final.read_bytes() == b"one\n"


@pytest.mark.parametrize("options", [{"gzip": True}, {"rotate_size": 1}, {"rotate_interval": 1.0}, {"work_dir": "w"}])
def test_a_name_without_a_revision_is_refused_where_one_is_needed(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="<REV>"):
        Layout(**{"output_dir": tmp_path, "work_dir": tmp_path, "filename_format": "<TOPIC>", **options})


def test_directories_of_dates_and_topics_are_made_and_recovered_from(tmp_path: Path) -> None:
    names = {"filename_format": "<TOPIC>/<DATETIME>/<HOST><REV>.log", "datetime_format": "a/b"}
    for layout in (appending_in(tmp_path / "one", **names), layout_in(tmp_path / "two", **names)):
        file = TopicFile(layout, "topic")
        file.write([b"one"])
        file.close()
        (found,) = (each for each in layout.output_dir.rglob("*") if each.is_file())
        assert found.read_bytes() == b"one\n"
        assert found.parent == layout.output_dir / "topic" / "a" / "b"
    leave(layout, b"two", torn=b"thr")
    assert [each.name for each in recover(layout)] == ["host-000001.log"]


def test_the_host_of_a_name_is_the_short_one_unless_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.socket, "gethostname", lambda: "web1.example.org")

    def host(identifier: str) -> str:
        layout = Layout(
            output_dir=tmp_path, work_dir=tmp_path, filename_format="<HOST><REV>", host_identifier=identifier
        )
        return layout.name(layout.template("t", 0.0), 0)

    assert host("") == "web1"
    assert host("a-<SHORT_HOST>-<HOSTNAME>") == "a-web1-web1.example.org"


# -- files that are gone on with


def test_a_file_without_revision_is_gone_on_with_under_its_own_name(tmp_path: Path) -> None:
    for body in (b"one", b"two"):
        file = TopicFile(appending_in(tmp_path), "topic")
        file.write([body])
        assert [path.name for path in tmp_path.iterdir()] == ["topic.host.day.log"]  # while it is written to, too
        file.close()
    assert lines_of(tmp_path) == [b"one", b"two"]


def test_a_file_that_was_moved_away_is_written_to_until_it_is_closed(tmp_path: Path) -> None:
    file = TopicFile(appending_in(tmp_path), "topic")
    file.write([b"one"])
    (tmp_path / "topic.host.day.log").rename(tmp_path / "moved")
    file.write([b"two"])
    file.close()
    file.write([b"three"])
    file.close()
    assert (tmp_path / "moved").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "topic.host.day.log").read_bytes() == b"three\n"


def test_a_line_that_a_power_cut_tore_stays_alone(tmp_path: Path) -> None:
    (tmp_path / "topic.host.day.log").write_bytes(b"one\ntw")
    file = TopicFile(appending_in(tmp_path), "topic")
    file.write([b"two"])
    file.close()
    assert lines_of(tmp_path) == [b"one", b"tw", b"two"]


def test_a_full_disk_cuts_what_is_gone_on_with_back_to_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topic.host.day.log"
    path.write_bytes(b"one\n")
    file = TopicFile(appending_in(tmp_path), "topic")
    fill_the_disk(monkeypatch, after=2)
    with pytest.raises(OSError, match="No space") as caught:
        file.write([b"two"])
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one\n"
    file.close()


def test_two_programs_do_not_write_to_one_file(tmp_path: Path) -> None:
    first, second = (TopicFile(appending_in(tmp_path), "topic") for _ in range(2))
    first.write([b"one"])
    with pytest.raises(BlockingIOError, match="<PID>"):
        second.write([b"two"])
    first.close()
    second.write([b"two"])
    second.close()
    assert lines_of(tmp_path) == [b"one", b"two"]


def test_files_rotate_by_size_between_the_messages_of_a_batch_and_a_restart_goes_on(tmp_path: Path) -> None:
    layout = appending_in(tmp_path, rotate_size=8)  # a file of just that size is gone on with
    file = TopicFile(layout, "topic")
    file.write([b"000", b"001"])
    file.write([b"002", b"003", b"004"])
    file.close()
    file = TopicFile(layout, "topic")
    file.write([b"005", b"006"])
    file.close()
    found = [path.read_bytes().split() for path in sorted(tmp_path.iterdir())]
    assert found == [[b"000", b"001", b"002"], [b"003", b"004", b"005"], [b"006"]]
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "topic.host-000000.day.log"


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_an_empty_file_is_begun_by_a_look_unless_they_are_to_be_skipped(compress: bool, tmp_path: Path) -> None:
    for skip, names in ((True, []), (False, [f"topic.host-000000.day.log{'.gz' if compress else ''}"])):
        file = TopicFile(layout_in(tmp_path, skip_empty_files=skip, gzip=compress), "topic")
        file.look()
        file.close()
        assert [path.name for path in tmp_path.iterdir()] == names
    assert lines_of(tmp_path) == []


def test_a_work_directory_on_another_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_device", lambda folder: folder.name)
    with pytest.raises(OptionError, match="work_dir"):
        TopicFile(Layout(output_dir=tmp_path / "out", work_dir=tmp_path / "work"), "topic")


# -- recovery: whose files it touches


def leave(layout: Layout, *batches: bytes, torn: bytes = b"") -> Path:
    """Leave a file as a killed process would, with *torn* behind what was synced."""
    file = TopicFile(layout, "topic")
    for batch in batches:
        file.write([batch])
    with file._file or file._open() as growing:
        growing.write(torn)
    return file._path


def test_recovery_leaves_the_files_of_other_programs_as_they_are(tmp_path: Path) -> None:
    others = {
        "video.mp4.part": bytes(range(10)),  # without a newline
        "paper.txt.part": b"line\nhalf",
        "dump.gz.part": b"no gzip",
        "empty.part": b"",
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    assert recover(layout_in(tmp_path)) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == others


def test_recovery_leaves_what_was_to_go_to_another_output_directory(tmp_path: Path) -> None:
    one, other = (
        Layout(output_dir=tmp_path / name, work_dir=tmp_path / "work", host_identifier="host") for name in ("a", "b")
    )
    part = leave(one, b"one", torn=b"tw")
    TopicFile(other, "topic")  # recovers at its start
    assert part.read_bytes() == b"one\ntw"
    assert list(other.output_dir.iterdir()) == []
    assert recover(one) == list(one.output_dir.iterdir())
    assert lines_of(one.output_dir) == [b"one"]
    assert not part.exists()


def test_recovery_finds_its_files_after_both_directories_were_moved(tmp_path: Path) -> None:
    def layout(root: str) -> Layout:
        return Layout(output_dir=tmp_path / root / "out", work_dir=tmp_path / root / "work")

    leave(layout("here"), b"one")
    (tmp_path / "here").rename(tmp_path / "there")
    recover(layout("there"))
    assert lines_of(tmp_path / "there" / "out") == [b"one"]


def test_a_file_that_may_not_be_opened_is_left_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = layout_in(tmp_path).part("a.log")
    folder.mkdir()
    assert recover(layout_in(tmp_path)) == []
    assert f"left {folder} as it is" in caplog.text


# -- recovery: what it takes for whole


@pytest.mark.parametrize("then", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("before", [False, True], ids=["plain", "gzip"])
def test_a_file_is_read_as_it_was_written_whatever_is_written_now(before: bool, then: bool, tmp_path: Path) -> None:
    leave(layout_in(tmp_path, gzip=before), b"one", b"two")
    finished = recover(layout_in(tmp_path, gzip=then))
    assert finished == list(tmp_path.iterdir()) == [tmp_path / f"topic.host-000000.day.log{'.gz' if before else ''}"]
    assert lines_of(tmp_path) == [b"one", b"two"]


def test_lines_in_a_file_that_is_named_like_gzip_are_not_lost(tmp_path: Path) -> None:
    layout = layout_in(tmp_path, filename_format="<REV><DATETIME>.<TOPIC>")
    file = TopicFile(layout, "topic.gz")
    file.write([b"one"])
    assert file._file is not None
    file._file.close()  # as a kill would
    assert recover(layout) == [tmp_path / "-000000day.topic.gz"]
    assert lines_of(tmp_path) == [b"one"]


def test_a_name_in_gz_without_gzip_is_refused(tmp_path: Path) -> None:
    wanted = "<TOPIC><REV>.gz"
    with pytest.raises(OptionError, match="filename_format"):
        layout_in(tmp_path, filename_format=wanted)
    assert (
        layout_in(tmp_path, filename_format=wanted, gzip=True).name(
            layout_in(tmp_path, filename_format=wanted, gzip=True).template("t", 0), 0
        )
        == "t-000000.gz"
    )


@pytest.mark.parametrize("whole", [[], [b"one", b"two"]], ids=["nothing", "two"])
def test_a_torn_gzip_member_is_cut_off_and_what_is_before_it_kept(whole: list[bytes], tmp_path: Path) -> None:
    layout = layout_in(tmp_path, gzip=True)
    torn = gzip.compress(b"three\n")
    for length in range(1, len(torn)):
        leave(layout, *whole, torn=torn[:length])
        finished = recover(layout)
        assert lines_of(tmp_path) == whole
        assert len(finished) == bool(whole)
        for path in finished:
            path.unlink()


@pytest.mark.parametrize("whole", [[], [b"one"]], ids=["nothing", "one"])
def test_a_damaged_gzip_file_is_left_with_a_warning(
    whole: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = layout_in(tmp_path, gzip=True)
    part = leave(layout, *whole, torn=b"damage" + gzip.compress(b"finished\n"))
    data = part.read_bytes()
    assert recover(layout) == []
    assert part.read_bytes() == data
    assert f"left {part} as it is" in caplog.text


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 40])
def test_the_last_newline_is_found_wherever_it_is(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 8)
    for torn in (0, 1, 7, 8, 9, 30):
        data = b"x\n" + b"y" * length + b"\n" + b"z" * torn
        assert files._whole_lines(io.BytesIO(data)) == length + 3
    assert files._whole_lines(io.BytesIO(b"z" * length)) == 0


@pytest.mark.parametrize("chunk", [1, 2, 7, 28, 29, 1000])
def test_the_last_whole_member_is_found_wherever_chunks_end(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", chunk)
    members = [gzip.compress(b"x" * n) for n in (0, 1, 5000, 3)]
    for count in range(5):
        whole = b"".join(members[:count])
        for torn in (b"", members[2][:1], members[2][:-1]):
            assert files._whole_gzip(io.BytesIO(whole + torn)) == len(whole)
        assert files._whole_gzip(io.BytesIO(whole + b"\0" + members[2])) is None


class Counting(io.BytesIO):
    """A file that counts the bytes read from it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.fixture
def peak() -> Iterator[Any]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_recovery_reads_the_end_of_lines_only(tmp_path: Path) -> None:
    file = Counting(b"line\n" * 200_000)
    assert files._whole_lines(file) == 1_000_000
    assert file.count == files._CHUNK


@pytest.mark.parametrize(
    "member", [gzip.compress(b"x", 1), gzip.compress(os.urandom(200_000), 1)], ids=["small", "large"]
)
def test_recovery_of_gzip_holds_little_of_a_file_in_memory(member: bytes, peak: Any, tmp_path: Path) -> None:
    layout, count = layout_in(tmp_path, gzip=True), 30 if len(member) > 1000 else 20_000
    part = layout.part("a.log.gz")
    with part.open("wb") as file:
        for _ in range(count):
            file.write(member)
    before = peak()
    assert recover(layout) == [tmp_path / "a.log.gz"]
    assert (tmp_path / "a.log.gz").stat().st_size == count * len(member)
    assert peak() - before < 300_000


def test_a_file_that_got_its_name_before_the_kill_gets_no_second_one(tmp_path: Path) -> None:
    part = leave(layout_in(tmp_path), b"one")
    os.link(part, tmp_path / "topic.host-000000.day.log")
    recover(layout_in(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["topic.host-000000.day.log"]
    assert lines_of(tmp_path) == [b"one"]


# -- files of topics that are silent


@pytest.mark.parametrize(
    ("options", "due"),
    [({"rotate_interval": 5.0}, 5.0), ({"datetime_format": "%S"}, 1.0), ({"rotate_size": 3}, 0.0)],
    ids=["interval", "date", "size"],
)
def test_a_file_that_is_due_gets_its_final_name_without_another_message(
    options: dict[str, Any], due: float, tmp_path: Path
) -> None:
    began = now = 1_000.0
    layout = layout_in(tmp_path, skip_empty_files=True, **options)
    file = TopicFile(layout, "topic", lambda: now)
    file.look()  # there is none
    file.write([b"one"])
    [part] = tmp_path.iterdir()
    if due:
        now = began + due - 0.5
        file.look()
        assert part.exists()
    now = began + due
    file.look()
    assert not part.exists()
    assert lines_of(tmp_path) == [b"one"]


def test_a_message_that_comes_when_the_file_is_due_goes_to_a_new_one(tmp_path: Path) -> None:
    now = 1_000.0
    file = TopicFile(layout_in(tmp_path, rotate_interval=5.0), "topic", lambda: now)
    file.write([b"one"])
    now += 5.0
    file.write([b"two"])
    file.close()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"one\n", b"two\n"]


def test_a_silent_file_is_looked_at_until_the_end_and_a_failure_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again, threads = threading.Event(), set()

    def fail(file: TopicFile) -> None:
        threads.add(threading.current_thread())
        if caplog.records:
            again.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(TopicFile, "look", fail)
    writers = [FileWriter(layout_in(tmp_path), "topic")]
    with looking(lambda: writers, 0.001, Hup()):
        assert again.wait(20.0)
    assert [thread.is_alive() for thread in threads] == [False]
    assert "no new file was begun" in caplog.text
