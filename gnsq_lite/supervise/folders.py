"""Makes the folder of a supervisor, and removes the folders of killed supervisors."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger("gnsq_lite.supervise")

_PREFIX = "gnsq-"
#: File that the supervisor locks; the kernel releases the lock when the supervisor ends, even by SIGKILL.
_LOCK = "supervisor.lock"
#: Longest path of the folder, in bytes: the path of a Unix socket has at most 107 bytes, on macOS 103.
_LONGEST = 103 - len("/gnsq-XXXXXXXX/999999999.sock")


@contextmanager
def folder_for_sockets() -> Iterator[str]:
    """Make a folder for this supervisor, and remove it at the end; first remove the folders of killed supervisors."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _LONGEST:
        parent = "/tmp"
    clean(parent)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    lock = os.open(os.path.join(folder, "new"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Renamed after flock(), because clean() removes a folder whose file _LOCK is not locked.
        os.rename(os.path.join(folder, "new"), os.path.join(folder, _LOCK))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clean(parent: str) -> None:
    """Remove only the folders that killed supervisors of this user left in *parent*."""
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
            log.info("removed the folder of a killed supervisor: %s", entry.path)


def _entries(parent: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(parent) as entries:
            return list(entries)
    except OSError:
        return []


def _is_mine(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
