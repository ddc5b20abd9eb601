"""What a supervisor leaves on the disk while it runs, and what one that was killed has left there."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gnsq_lite.errors import OptionError

log = logging.getLogger("gnsq_lite.supervise")

_PREFIX = "gnsq-"
#: Locked while the supervisor lives; the kernel lets go of it however the supervisor ends.
_LOCK = "supervisor.lock"
#: Bytes of a folder below which the name of a socket in it is a path for a Unix socket: 107, on macOS 103.
_LONGEST = 103 - len("/gnsq-XXXXXXXX/999999999.sock")


@contextmanager
def folder_for_sockets() -> Iterator[str]:
    """Make a folder of this supervisor's own and remove it at the end; those that killed ones have left go now."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _LONGEST:
        parent = "/tmp"
    clean(parent)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    lock = os.open(os.path.join(folder, "new"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(os.path.join(folder, "new"), os.path.join(folder, _LOCK))  # named when it is locked, for clean()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clean(parent: str) -> None:
    """Remove the folders in *parent* that killed supervisors of this user have left; no other one's is touched."""
    for entry in _entries(parent):
        with suppress(OSError):
            if not entry.name.startswith(_PREFIX) or not _is_mine(entry.path):
                continue
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)
            log.info("removed what a killed supervisor had left: %s", entry.path)


def _entries(parent: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(parent) as entries:
            return list(entries)
    except OSError:
        return []


def _is_mine(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


@contextmanager
def pidfile(path: str | None) -> Iterator[None]:
    """Keep this process's id in the file *path*; None: in none.

    It is locked meanwhile, so a file that a killed process has left is known for one, whoever has its id now.  Raises
    OptionError: it cannot be written, or its process runs.
    """
    if path is None:
        yield
        return
    file = _locked(path)
    try:
        os.truncate(file, 0)
        os.pwrite(file, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(file)


def _locked(path: str) -> int:
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OptionError("pidfile", path, f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BlockingIOError:
            other = os.pread(file, 20, 0).decode("ascii", "replace").strip()
            os.close(file)
            raise OptionError("pidfile", path, f"its process {other} runs") from None
        os.close(file)  # its owner has just removed it: another one
