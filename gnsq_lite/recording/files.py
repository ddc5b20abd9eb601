"""The calls a log makes to a file system, in one place: a test replaces them to crash, or to fill the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Protocol


class Files:
    """The real file system.  Every method either has its effect or raises OSError."""

    def create(self, path: Path) -> int:
        """Create *path* for appending and return its descriptor; it must not exist yet."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)

    def append(self, fd: int, data: bytes) -> None:
        """Write all of *data*."""
        view = memoryview(data)
        while len(view):
            written = os.write(fd, view)
            if written == 0:
                raise OSError(errno.EIO, "the file took no bytes")
            view = view[written:]

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        """Write all buffers, in one call where the disk takes them."""
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        written = os.writev(fd, views[:1000])
        if written < sum(map(len, views)):
            self.append(fd, b"".join(views)[written:])

    def sync(self, fd: int) -> None:
        """Return when the file's content has reached the disk."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to *size* bytes."""
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        """Close the descriptor."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give *source* the name *target*, at once and whole."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove *path*; one that is gone already is no error."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory have reached the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace_text(self, path: Path, text: str) -> None:
        """Set the content of *path*, durably: after a crash it is the old one or the new one."""
        self.replace(path, text.encode())

    def replace(self, path: Path, data: bytes) -> None:
        """Set the content of *path* likewise, to bytes."""
        fresh = path.with_name(path.name + ".new")
        self.unlink(fresh)
        self.write_new(fresh, data)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def write_new(self, path: Path, data: bytes) -> None:
        """Make the file *path*, and return when its bytes have reached the disk; its name may not have yet."""
        fd = self.create(path)
        try:
            self.append(fd, data)
            self.sync(fd)
        finally:
            self.close(fd)


class Blobs(Protocol):
    """Small named contents in one place.  Every method raises OSError where the place cannot be had."""

    def names(self) -> list[str]:
        """Return the names that are there, sorted."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return *size* bytes from *at* on, fewer at the end.  Raises FileNotFoundError."""

    def write(self, name: str, data: bytes) -> None:
        """Set the content of *name*, durably and whole."""

    def remove(self, name: str) -> None:
        """Remove *name*; one that is gone already is no error."""


class Folder:
    """Blobs as files of a directory, which is made where it does not exist."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory, self.files = directory, files or Files()

    def names(self) -> list[str]:
        """Return the files' names."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return sorted(path.name for path in self.directory.iterdir())

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return what the file has there."""
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
