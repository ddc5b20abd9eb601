"""File system calls of a log.  Tests replace these calls to simulate crashes and full disks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol


class Files:
    """The real file system.  Every method raises OSError if its system call fails."""

    def create(self, path: Path, mode: int = 0o640) -> int:
        """Create the file *path* for appending, and return its descriptor.  Raises FileExistsError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, mode)

    def append(self, fd: int, data: bytes) -> None:
        """Write all of *data*."""
        view = memoryview(data)
        while len(view):
            written = os.write(fd, view)
            if written == 0:
                raise OSError(errno.EIO, "the file accepts no bytes")
            view = view[written:]

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        """Write all buffers, with one system call if possible."""
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        written = os.writev(fd, views[:1000])
        if written < sum(map(len, views)):
            self.append(fd, b"".join(views)[written:])

    def sync(self, fd: int) -> None:
        """Sync the file's content to the disk."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Truncate the file to *size* bytes."""
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename *source* to *target* atomically."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give *source* the second name *target*.  Raises FileExistsError: never replaces a file, as rename() does."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove *path*, if it exists."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Sync the directory's names to the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace_text(self, path: Path, text: str) -> None:
        """Replace the text of *path* durably.  After a crash, the file has either the old or the new text."""
        self.replace(path, text.encode())

    def replace(self, path: Path, data: bytes, fresh: Path | None = None, mode: int = 0o640) -> None:
        """Replace the bytes of *path* durably.  *fresh* is the file that is written and renamed."""
        fresh = fresh or path.with_name(path.name + ".new")
        self.unlink(fresh)
        self.write_new(fresh, data, mode)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def write_new(self, path: Path, data: bytes, mode: int = 0o640) -> None:
        """Create the file *path* and sync its bytes, but do not sync the directory."""
        fd = self.create(path, mode)
        try:
            self.append(fd, data)
            self.sync(fd)
        finally:
            self.close(fd)

    def create_whole(self, path: Path, fresh: Path, fill: Callable[[BinaryIO], None]) -> bool:
        """Create the file *path* durably, with all its bytes or not at all, and return False if it exists.

        *fill* writes the bytes to a file object.  *fresh* is the file that is written and linked.  Other users may read
        the file, as far as the umask allows.
        """
        self.unlink(fresh)
        try:
            with open(self.create(fresh, 0o666), "wb") as sink:
                fill(sink)
                sink.flush()
                self.sync(sink.fileno())
            os.utime(fresh)  # readers order files by this time, and this process may have been suspended
            self.link(fresh, path)
        except FileExistsError:
            return False
        finally:
            self.unlink(fresh)
        self.sync_directory(path.parent)
        return True


class Blobs(Protocol):
    """Named small files of a directory, or objects of a store.  Methods raise OSError if the disk or store fails."""

    def names(self) -> list[str]:
        """Return the existing names, sorted."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return at most *size* bytes (None: all bytes) from the offset *at* on.  Raises FileNotFoundError."""

    def write(self, name: str, data: bytes) -> None:
        """Replace the content of *name*, durably and atomically."""

    def remove(self, name: str) -> None:
        """Remove *name*, if it exists."""


class Folder:
    """Implements :class:`Blobs` with the files of a directory.  names() and write() create a missing directory."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory, self.files = directory, files or Files()

    def names(self) -> list[str]:
        """Return the files' names."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return sorted(path.name for path in self.directory.iterdir())

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return at most *size* bytes of the file (None: all bytes) from the offset *at* on."""
        with (self.directory / name).open("rb") as file:
            file.seek(at)
            return file.read(-1 if size is None else size)

    def write(self, name: str, data: bytes) -> None:
        """Replace the file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.files.replace(self.directory / name, data)

    def remove(self, name: str) -> None:
        """Unlink the file."""
        self.files.unlink(self.directory / name)
