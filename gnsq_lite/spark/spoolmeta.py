"""Whose a spool is: META.json, the lock, and the errors that tell what is wrong with one."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gnsq_lite.errors import NSQError

log = logging.getLogger("gnsq_lite.spark")


class SpoolError(NSQError):
    """The spool cannot be used: another query's, another topic's, or not writable."""


class SpoolInUse(SpoolError):
    """Another query holds the spool's lock."""


class DataLoss(SpoolError):
    """Rows that were acknowledged to nsqd, and that the query still needs, are gone."""


def tell_loss(why: str, rest: str, *, fails: bool) -> None:
    """Raise DataLoss where that *fails* the query (failOnDataLoss), or log it; *rest* is what it goes on without."""
    if fails:
        raise DataLoss(f"{why}; set failOnDataLoss=false to go on without {rest}")
    log.error("%s; failOnDataLoss=false: going on", why)


class SpoolNotVisible(SpoolError):
    """This process sees another directory, or none, where the driver has the spool; nothing is known to be lost."""


@dataclass(frozen=True)
class Meta:
    """The content of META.json."""

    uuid: str
    topic: str
    channel: str
    committed: int = 0
    v: int = 1

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps({"v": self.v, **{k: getattr(self, k) for k in ("uuid", "topic", "channel", "committed")}})


def read_meta(directory: Path) -> Meta | None:
    """Return META.json's content; None where there is none.  Raises SpoolError for one of another version."""
    try:
        text = (directory / "META.json").read_text()
    except FileNotFoundError:
        return None
    return parse_meta(text, f"{directory}/META.json")


def parse_meta(text: str, where: str) -> Meta:
    """Return what *text*, found at *where*, says.  Raises SpoolError."""
    try:
        found = json.loads(text)
        version = found.get("v", 1)
        if version == 1:
            return Meta(**found)
    except (ValueError, TypeError, AttributeError) as error:
        raise SpoolError(f"{where} is not readable: {error}") from error
    raise SpoolError(f"{where} is of a spool of version {version}; this library knows version 1")


def check_visible(directory: Path, spool: str) -> None:
    """Raise SpoolNotVisible unless *directory* is, as this process sees it, the spool of the uuid *spool*."""
    meta = read_meta(directory)
    if meta is None or meta.uuid != spool:
        what = "no spool" if meta is None else "another spool"
        raise SpoolNotVisible(
            f"there is {what} at {directory} on {socket.gethostname()}: spoolDir must be visible on this executor as"
            " the driver sees it"
        )


def lock_directory(directory: Path, wait: float) -> int:
    """Take the directory's lock and return its descriptor.  Raises SpoolInUse after *wait* seconds."""
    path = directory / "LOCK"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                os.close(fd)
                raise SpoolInUse(
                    f"spool {directory} is in use by another query ({holder}); every query needs its own spoolDir"
                ) from None
            time.sleep(0.05)
    with suppress(OSError):  # a full disk takes no note of the holder
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd
