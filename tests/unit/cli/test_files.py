"""Files of messages: what a failed write, another process and wrong names do to them."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.cli import files
from gnsq_lite.cli.files import PART, Layout, TopicFile, recover
from gnsq_lite.errors import OptionError


def layout_in(folder: Path, **options: Any) -> Layout:
    return Layout(output_dir=folder, work_dir=folder, datetime_format="day", host_identifier="host", **options)


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
    part, final = tmp_path / f"a.log{PART}", tmp_path / "a.log"
    part.write_bytes(b"one\n")
    lock = fcntl.flock

    def too_late(file: Any, how: int) -> None:
        os.rename(part, final)
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", too_late)
    assert recover(layout_in(tmp_path)) == []
    assert final.read_bytes() == b"one\n"


@pytest.mark.parametrize("option", ["filename_format", "datetime_format", "host_identifier"])
def test_a_name_with_a_slash_is_refused_before_the_first_message(option: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=option):
        Layout(output_dir=tmp_path, work_dir=tmp_path, **{option: "a/<REV>"})


def test_a_work_directory_on_another_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_device", lambda folder: folder.name)
    with pytest.raises(OptionError, match="work_dir"):
        TopicFile(Layout(output_dir=tmp_path / "out", work_dir=tmp_path / "work"), "topic")
