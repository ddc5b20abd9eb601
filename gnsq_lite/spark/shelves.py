"""Where receivers on executors publish: named contents that are created once, by whoever is first.

On a disk a name is taken by a hard link; elsewhere by a store's call that only creates.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.spark.files import Files, Store
from gnsq_lite.spark.objectlog import ObjectLog, Patience, create_once
from gnsq_lite.spark.segments import listed
from gnsq_lite.spark.spoolmeta import (
    Meta,
    SpoolError,
    SpoolNotVisible,
    check_visible,
    lock_directory,
    read_meta,
    refuse_other,
)

_ASIDE = re.compile(r"\.(.+)\.\d+\.[0-9a-f]{32}")


def wanted_name(name: str) -> str | None:
    """Return the name that the file *name*, written aside, was to have; None for another file."""
    found = _ASIDE.fullmatch(name)
    return None if found is None else found[1]


class Shelf(Protocol):
    """Contents that never change once they are there.  Every method raises OSError where the place cannot be had."""

    def read(self, name: str) -> pa.Buffer | None:
        """Return what *name* has; None where nobody has made it."""

    def create(self, name: str, data: bytes) -> bool:
        """Create *name* with *data*, whole and durable, unless it exists; return whether *data* is what it has."""

    def names(self) -> list[str]:
        """Return the names that are there."""

    def remove(self, names: list[str]) -> None:
        """Remove *names*."""


class DirectoryShelf:
    """A directory that all executors share."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory, self.files = directory, files or Files()

    def read(self, name: str) -> pa.Buffer | None:
        """Return the file's content, mapped into memory."""
        path = self.directory / name
        try:
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(path)) as mapped:
                return mapped.read_buffer()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Write a file aside, and link it to its name."""
        path, files = self.directory / name, self.files
        fresh = path.with_name(f".{name}.{os.getpid()}.{uuid.uuid4().hex}")
        try:
            files.write_new(fresh, data)
            files.link(fresh, path)
        except FileExistsError:  # over a network it may be of this very call, whose answer was lost
            if not fresh.samefile(path):
                return False
        finally:
            files.unlink(fresh)
        files.sync_directory(path.parent)
        return True

    def names(self) -> list[str]:
        """Return the files' names."""
        return [path.name for path in self.directory.iterdir()]

    def remove(self, names: list[str]) -> None:
        """Unlink the files."""
        for name in names:
            self.files.unlink(self.directory / name)


class ObjectShelf:
    """Objects below a prefix."""

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store, self._patiently = store, Patience(store.url, clock, sleep)

    def read(self, name: str) -> pa.Buffer | None:
        """Return the object's content."""
        try:
            return pa.py_buffer(self._patiently(lambda: self._store.read(name)))
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Put it under the condition that the name is free."""
        return self._patiently(lambda: create_once(self._store, name, data))

    def names(self) -> list[str]:
        """Return the objects' names."""
        return self._patiently(self._store.names)

    def remove(self, names: list[str]) -> None:
        """Remove the objects, many at once."""
        if names:
            self._patiently(lambda: self._store.remove(*names))


class EpochSpool(Protocol):
    """A spool of receiver=executors, as the driver has it."""

    shelf: Shelf

    def open(self, meta: Meta, wait: float) -> Meta:
        """Become its one driver; return whose it is, *meta* where it is new.  Raises SpoolError."""

    def check_mine(self) -> None:
        """Raise SpoolError where another driver took it over."""

    def commit(self, meta: Meta) -> None:
        """Note the last committed epoch.  Raises SpoolError, OSError."""

    def check_visible(self, spool: str) -> None:
        """Raise SpoolNotVisible unless this process sees the very spool of the uuid *spool*."""

    def close(self) -> None:
        """Let another driver in."""


class DirectorySpool:
    """In a directory, locked."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory, self._files = directory, files
        self.shelf: Shelf = DirectoryShelf(directory, files)
        self._lock: int | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None}

    def open(self, meta: Meta, wait: float) -> Meta:
        """Take the lock, and read META.json."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = lock_directory(self._directory, wait)
        found = read_meta(self._directory)
        if found is None:
            self.commit(meta)
        committed = (found or meta).committed
        numbers = [segment.number for segment in listed(self._directory)]
        numbers += [committed + 1 for _ in self._directory.glob("open-*.part")]  # they have none yet
        try:
            refuse_other(self._directory, "driver", numbers, committed)
        except SpoolError:
            self.close()
            raise
        return found or meta

    def check_mine(self) -> None:
        """The lock holds as long as this process lives."""

    def commit(self, meta: Meta) -> None:
        """Replace META.json."""
        self._files.replace_text(self._directory / "META.json", meta.text())

    def check_visible(self, spool: str) -> None:
        """Look at META.json."""
        check_visible(self._directory, spool)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class RemoteSpool:
    """On an object store, behind the lease and the fence of :class:`~gnsq_lite.spark.objectlog.ObjectLog`."""

    def __init__(self, make: Callable[[], ObjectLog]) -> None:
        self._log = make()
        self.shelf: Shelf = ObjectShelf(self._log.store.below("epochs/"))
        self._make = make

    def __reduce__(self) -> tuple[type[RemoteSpool], tuple[Callable[[], ObjectLog]]]:
        return type(self), (self._make,)  # a lease stays with its process

    def open(self, meta: Meta, wait: float) -> Meta:
        """Take the lease over."""
        try:
            return self._log.patiently(lambda: self._open(meta, wait), opens=True)
        except OSError as error:
            raise SpoolError(f"spool {self._log.store.url} cannot be opened: {error}") from error

    def _open(self, meta: Meta, wait: float) -> Meta:
        found = self._log.make_meta(meta)
        if (found.topic, found.channel) == (meta.topic, meta.channel):
            waiting, _ = self._log.take_over(wait)
            try:
                refuse_other(self._log.store.url, "driver", (segment.number for segment in waiting), 0)
            except SpoolError:
                self.close()
                raise
        return replace(found, committed=self._log.committed())

    def check_mine(self) -> None:
        """Ask for a newer lease."""
        self._log.check_writer()

    def commit(self, meta: Meta) -> None:
        """Write it down under this lease's name."""
        self._log.commit(meta.committed)

    def check_visible(self, spool: str) -> None:
        """Read whose it is."""
        meta = self._log.meta()
        if meta is None or meta.uuid != spool:
            where = f"{self._log.store.url} on {socket.gethostname()}"
            raise SpoolNotVisible(f"there is no spool {spool} at {where}: this executor does not see the driver's")

    def close(self) -> None:
        """Give the lease back."""
        self._log.close()
