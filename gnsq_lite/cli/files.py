"""Crash-safe files of messages: synced before FIN, renamed when complete, never overwritten."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import itertools
import logging
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gnsq_lite.errors import OptionError

log = logging.getLogger("gnsq_lite.to_file")

#: Suffix of a file that is still being written; the part before it names the owner, see Layout.part().
PART = ".part"

#: Bytes that recovery reads at a time.
_CHUNK = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Layout:
    """File names and rotation; the fields are nsq_to_file's flags of the same names.

    A format may hold "/": the directories are made.
    """

    output_dir: Path
    work_dir: Path
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    datetime_format: str = "%Y-%m-%d_%H"
    host_identifier: str = ""
    gzip: bool = False
    gzip_level: int = 6
    rotate_size: int = 0
    rotate_interval: float = 0.0
    skip_empty_files: bool = False

    def __post_init__(self) -> None:
        if self.is_revised and "<REV>" not in self.filename_format:
            why = "must have <REV> with gzip, rotation or a work_dir, to keep file names distinct"
            raise OptionError("filename_format", self.filename_format, why)
        if self.filename_format.endswith(".gz") and not self.gzip:
            raise OptionError("filename_format", self.filename_format, "must not end in .gz without gzip")

    @property
    def is_revised(self) -> bool:
        """Whether names have a revision, -000000 at first; ``<REV>`` stands for nothing otherwise."""
        return not self._in_one_place or self.gzip or self.rotate_size > 0 or self.rotate_interval > 0

    @property
    def appends(self) -> bool:
        """Whether existing files are appended to: a file then has its final name from the beginning."""
        return self._in_one_place and not self.gzip and not self.rotate_interval

    @property
    def _in_one_place(self) -> bool:
        return self.output_dir == self.work_dir

    def template(self, topic: str, now: float) -> str:
        """Return the file's name, ``<REV>`` not yet filled in."""
        name = socket.gethostname()
        short = name.split(".")[0]
        host = self.host_identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", name) or short
        parts = {
            "<TOPIC>": topic,
            "<HOST>": host,
            "<PID>": str(os.getpid()),
            "<DATETIME>": time.strftime(self.datetime_format, time.localtime(now)),
        }
        name = self.filename_format
        for mark, text in parts.items():
            name = name.replace(mark, text)
        return name + (".gz" if self.gzip and not name.endswith(".gz") else "")

    def name(self, template: str, revision: int) -> str:
        """Return the file's name."""
        return template.replace("<REV>", f"-{revision:06d}" if self.is_revised else "").lstrip("/")

    def part(self, name: str) -> Path:
        """Return the path of the file *name* while it is written, where it is not appended to."""
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
        self._template = ""
        self._revision = 0
        self._opened = 0.0
        self._written = self._synced = 0
        self._stays = False
        for folder in (layout.output_dir, layout.work_dir):
            folder.mkdir(parents=True, exist_ok=True)
        if _device(layout.output_dir) != _device(layout.work_dir):
            raise OptionError("work_dir", str(layout.work_dir), "must be on the file system of the output directory")
        recover(layout)

    def write(self, bodies: list[bytes]) -> None:
        """Write each body and a newline, and sync: when it returns they survive a power cut.

        Raises OSError, with the file's path, where the disk is full, for one; no torn line is left then, and all the
        bodies may be written again.
        """
        done = 0
        while done < len(bodies):
            if self._is_due():
                self.close()
            file = self._file or self._open()
            upto = self._fitting(bodies, done)
            data = b"".join(body + b"\n" for body in bodies[done:upto])
            # A whole gzip member for each sync: what was synced can be read whatever comes after it.
            packed = gzip.compress(data, self._layout.gzip_level) if self._layout.gzip else data
            try:
                _write_all(file, packed)
                os.fsync(file.fileno())
            except BaseException as error:
                self._cut_back(file)
                if isinstance(error, OSError) and error.filename is None:
                    raise OSError(error.errno, error.strerror, str(self._path)) from error
                raise
            self._synced += len(packed)
            self._written += len(data)
            done = upto

    def _fitting(self, bodies: list[bytes], first: int) -> int:
        """Return the index of the first body after *first* that begins a new file."""
        if not self._layout.rotate_size:
            return len(bodies)
        size, upto = self._written, first
        while upto < len(bodies) and (upto == first or size <= self._layout.rotate_size):
            size += len(bodies[upto]) + 1
            upto += 1
        return upto

    def _cut_back(self, file: BinaryIO) -> None:
        """Cut off what was not synced: half a line spoils the next one, half a gzip member all that follow."""
        try:
            file.truncate(self._synced)
            file.seek(self._synced)
        except OSError:  # the next write begins a new file, or a new line, and recover() cuts this one
            self._file = None
            file.close()

    def _is_due(self) -> bool:
        if self._file is None:
            return False
        layout, now = self._layout, self._now()
        moved_on = layout.template(self._topic, now) != self._template
        too_large = 0 < layout.rotate_size < self._written
        return moved_on or too_large or 0 < layout.rotate_interval <= now - self._opened

    def look(self) -> None:
        """Give the file its final name if the next message would begin a new one; see to it that there is one.

        The latter not with skip_empty_files.  Raises OSError; the file is then left to recover().
        """
        if self._is_due():
            self.close()
        if self._file is None and not self._layout.skip_empty_files:
            self._open()
            self._stays = True

    def _open(self) -> BinaryIO:
        layout, self._opened = self._layout, self._now()
        template = layout.template(self._topic, self._opened)
        first = self._revision + 1 if template == self._template else 0
        for revision in range(first if layout.is_revised else 0, 1_000_000):
            name = layout.name(template, revision)
            found = self._append_to(name) if layout.appends else self._begin(name)
            if found is not None:
                self._template, self._revision, self._stays = template, revision, False
                self._file = found
                return found
        raise FileExistsError(errno.EEXIST, "every revision is taken", str(layout.output_dir / name))

    def _append_to(self, name: str) -> BinaryIO | None:
        """Open the file to append to; None where it is full, or another process holds it and a next one is possible."""
        layout, self._path = self._layout, self._layout.output_dir / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Not buffered: what a full disk did not take must not be written later, by a close() for one.
        file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 - kept open until the next rotation
        size = file.seek(0, os.SEEK_END)
        if not _take(file, self._path):
            file.close()
            if layout.is_revised:
                return None
            raise BlockingIOError(
                errno.EAGAIN, "another process is writing to it; add <PID> to --filename-format", str(self._path)
            )
        if 0 < layout.rotate_size < size:
            file.close()
            return None
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # torn by a power cut: a line of its own
            size += file.write(b"\n")
        self._written = self._synced = size
        _sync_folder(self._path.parent)
        return file

    def _begin(self, name: str) -> BinaryIO | None:
        """Create a file; return None where the name is taken."""
        final, self._path = self._layout.output_dir / name, self._layout.part(name)
        for folder in (final.parent, self._path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if final.exists():
            return None
        try:
            file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - as above
        except FileExistsError:
            return None
        if not _take(file, self._path):  # recover() of another process found it before it was locked
            file.close()
            return None
        self._written = self._synced = 0
        _sync_folder(self._path.parent)
        return file

    def close(self) -> None:
        """Give the file its final name; the next message begins a new one, or appends where that is configured."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            if not self._synced and not self._stays:
                os.unlink(self._path)
            elif not self._layout.appends:
                if self._layout.gzip and not self._synced:
                    _write_all(file, gzip.compress(b""))
                _publish(self._path, self._finals())

    def _finals(self) -> Iterator[Path]:
        for revision in itertools.count(self._revision):
            yield self._layout.output_dir / self._layout.name(self._template, revision)


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _take(file: BinaryIO, path: Path) -> bool:
    """Lock *file*; return False where another process holds it or *path* is another file by now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _device(folder: Path) -> int:
    return os.stat(folder).st_dev


def _publish(part: Path, finals: Iterable[Path]) -> None:
    """Rename to the first of *finals* that is free, never replacing a file: another process may have taken the name."""
    for target in finals:
        try:
            os.link(part, target)
        except FileExistsError:
            if not os.path.samefile(part, target):  # it is where a kill came before the next line
                continue
        os.unlink(part)
        _sync_folder(target.parent)
        return


def _numbered(final: Path) -> Iterator[Path]:
    yield final
    for number in itertools.count(1):
        yield final.with_name(f"{final.name}.{number}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recover(layout: Layout) -> list[Path]:
    """Finish the files that a killed process left: cut off a torn end, and rename.  Return their final names.

    What is cut was not synced, so nsqd was not told that it is handled, and sends it again.  Only files that were to
    go to this output directory are touched; one that is damaged, not torn, is left as it is, with a warning.
    """
    finished = []
    folders = (layout.filename_format + layout.datetime_format).count("/")
    for compressed in (False, True):
        mark = layout.mark(compressed)
        found = (layout.work_dir.glob("*/" * depth + "?*" + mark) for depth in range(folders + 1))
        for part in sorted(itertools.chain(*found)):
            final = layout.output_dir / str(part.relative_to(layout.work_dir))[: -len(mark)]
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
        final.parent.mkdir(parents=True, exist_ok=True)
        _publish(part, _numbered(final))
        return True


def _whole_lines(file: BinaryIO) -> int:
    """Return the length of the complete lines, searching back from the end."""
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
    """Return the length of the complete gzip members; None where the file holds anything else."""
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
