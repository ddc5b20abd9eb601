"""Files of messages that survive being killed: synced before FIN, renamed when whole, never overwritten."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import logging
import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gnsq_lite.errors import OptionError

log = logging.getLogger("gnsq_lite.to_file")

#: Suffix of a file that is still written to; what stands before it says whose it is, see Layout.part().
PART = ".part"

#: Bytes that recovery reads at a time.
_CHUNK = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How files are named and when a new one begins; as nsq_to_file's flags of the same names."""

    output_dir: Path
    work_dir: Path
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    datetime_format: str = "%Y-%m-%d_%H"
    host_identifier: str = ""
    gzip: bool = False
    gzip_level: int = 6
    rotate_size: int = 0
    rotate_interval: float = 0.0

    def __post_init__(self) -> None:
        if "<REV>" not in self.filename_format:
            raise OptionError(
                "filename_format", self.filename_format, "must have <REV>, or files could not be told apart"
            )
        for option in ("filename_format", "datetime_format", "host_identifier"):
            if "/" in getattr(self, option):
                raise OptionError(option, getattr(self, option), "must name a file, not a path")
        if self.filename_format.endswith(".gz") and not self.gzip:
            raise OptionError("filename_format", self.filename_format, "must not end in .gz without gzip")

    def name(self, topic: str, now: float, revision: int) -> str:
        """Return the file's name."""
        host = self.host_identifier or socket.gethostname()
        parts = {
            "<TOPIC>": topic.replace("#", "_"),
            "<HOST>": host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": time.strftime(self.datetime_format, time.localtime(now)),
            "<REV>": f"-{revision:06d}" if revision else "",
        }
        name = self.filename_format
        for mark, text in parts.items():
            name = name.replace(mark, text)
        return name + (".gz" if self.gzip and not name.endswith(".gz") else "")

    def part(self, name: str) -> Path:
        """Return the path at which the file *name* grows."""
        return self.work_dir / (name + self.mark(self.gzip))

    def mark(self, compressed: bool) -> str:
        """Return the end of the names of files that grow, which no other program's and no other output_dir's have.

        The output directory stands in it as seen from the work directory: it is the same after both were moved.
        """
        way = os.path.relpath(os.path.realpath(self.output_dir), os.path.realpath(self.work_dir))
        identity = hashlib.sha256(os.fsencode(way)).hexdigest()[:12]
        return f".to-file-{'gz-' if compressed else ''}{identity}{PART}"


class TopicFile:
    """The file that a topic's messages go to now, and the rotation to the next."""

    def __init__(self, layout: Layout, topic: str, now: Callable[[], float] = time.time) -> None:
        self._layout, self._topic, self._now = layout, topic, now
        self._file: BinaryIO | None = None
        self._path = Path()
        self._final = Path()
        self._opened = 0.0
        self._written = self._synced = 0
        for folder in (layout.output_dir, layout.work_dir):
            folder.mkdir(parents=True, exist_ok=True)
        if _device(layout.output_dir) != _device(layout.work_dir):
            raise OptionError("work_dir", str(layout.work_dir), "must be on the file system of the output directory")
        recover(layout)

    def write(self, bodies: list[bytes]) -> None:
        """Write each body and a newline, and sync: when it returns they survive a power cut.

        Raises OSError where the disk is full, for one; the file is then as it was, and the bodies may be written again.
        """
        self.finish_if_due()
        file = self._file or self._open()
        data = b"".join(body + b"\n" for body in bodies)
        # A whole gzip member for each sync: what was synced can be read whatever comes after it.
        packed = gzip.compress(data, self._layout.gzip_level) if self._layout.gzip else data
        try:
            _write_all(file, packed)
            os.fsync(file.fileno())
        except BaseException:
            self._cut_back(file)
            raise
        self._synced += len(packed)
        self._written += len(data)

    def _cut_back(self, file: BinaryIO) -> None:
        """Cut off what was not synced: half a line would spoil the next one, half a gzip member all that follow."""
        try:
            file.truncate(self._synced)
            file.seek(self._synced)
        except OSError:  # the next write begins a new file, and recover() cuts this one
            self._file = None
            file.close()

    def finish_if_due(self) -> None:
        """Give the file its final name if the next message would begin a new one.

        Raises OSError where that fails; the file is then left to recover().
        """
        if self._file is None:
            return
        layout, now = self._layout, self._now()
        moved_on = layout.name(self._topic, now, 0) != layout.name(self._topic, self._opened, 0)
        too_large = 0 < layout.rotate_size <= self._written
        too_old = 0 < layout.rotate_interval <= now - self._opened
        if moved_on or too_large or too_old:
            self.close()

    def _open(self) -> BinaryIO:
        self._opened, self._written, self._synced = self._now(), 0, 0
        for revision in range(1_000_000):
            name = self._layout.name(self._topic, self._opened, revision)
            self._path, self._final = self._layout.part(name), self._layout.output_dir / name
            if self._final.exists():
                continue
            try:
                # Not buffered: what a full disk did not take must not be written later, by a close() for one.
                file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - kept open until the next rotation
            except FileExistsError:
                continue
            if not _take(file, self._path):  # recover() of another process found it before it was locked
                file.close()
                continue
            _sync_folder(self._layout.work_dir)
            self._file = file
            return file
        raise OSError(f"every revision of {name} is taken")

    def close(self) -> None:
        """Give the file its final name."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                if self._synced:
                    _publish(self._path, self._final)
                else:
                    os.unlink(self._path)


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _take(file: BinaryIO, path: Path) -> bool:
    """Lock *file* and return whether it is this process's own now; not so where *path* names it no longer."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _device(folder: Path) -> int:
    return os.stat(folder).st_dev


def _publish(part: Path, final: Path) -> None:
    """Rename without ever replacing a file: another process may have taken the name."""
    for revision in range(1_000_000):
        target = final if revision == 0 else final.with_name(f"{final.name}.{revision}")
        try:
            os.link(part, target)
        except FileExistsError:
            if not os.path.samefile(part, target):  # it is where a kill came before the next line
                continue
        os.unlink(part)
        _sync_folder(target.parent)
        return


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recover(layout: Layout) -> list[Path]:
    """Finish the files that a killed process left: cut a torn end off, and rename.  Return their final names.

    What is cut was not synced, so nsqd was not told that it is handled, and sends it again.  Only files that were to
    go to this output directory are touched; one that is damaged, not torn, is left as it is, with a warning.
    """
    finished = []
    for compressed in (False, True):
        mark = layout.mark(compressed)
        for part in sorted(layout.work_dir.glob("?*" + mark)):
            final = layout.output_dir / part.name[: -len(mark)]
            if _finish(part, final, _whole_gzip if compressed else _whole_lines):
                finished.append(final)
    return finished


def _finish(part: Path, final: Path, measure: Callable[[BinaryIO], int | None]) -> bool:
    """Cut *part* to what is whole and give it its final name; return whether there is such a file now."""
    try:
        file = open(part, "r+b")  # noqa: SIM115 - closed by the next line
    except FileNotFoundError:
        return False  # its process has just finished it
    except OSError as error:
        log.warning("left %s as it is: %s", part, error)
        return False
    with file:
        if not _take(file, part):
            return False  # somebody writes to it, or has finished it
        whole = measure(file)
        if whole is None:
            log.warning("left %s as it is: it is not gzip from beginning to end", part)
            return False
        file.truncate(whole)
        file.flush()
        os.fsync(file.fileno())
        if whole == 0:
            os.unlink(part)
            return False
        _publish(part, final)
        return True


def _whole_lines(file: BinaryIO) -> int:
    """Return the length of the whole lines; looks from the end, for as far as a line is torn."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _whole_gzip(file: BinaryIO) -> int | None:
    """Return the length of the whole gzip members before the end or a torn one; None where something else comes."""
    whole = position = 0
    member = zlib.decompressobj(wbits=31)
    while chunk := file.read(_CHUNK):
        position += len(chunk)
        while chunk:
            try:
                member.decompress(chunk)
            except zlib.error:
                return None
            chunk = member.unused_data
            if member.eof:
                whole, member = position - len(chunk), zlib.decompressobj(wbits=31)
    return whole
