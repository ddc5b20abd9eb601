"""Callbacks for ``on_give_up`` of a Reader (MSG-4).  A Worker also accepts strings such as ``"directory:PATH"``."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gnsq_lite.reader import log_give_up
from gnsq_lite.worker.dead import DeadLetter, Directory, OnGiveUp, Topic, by_words, to_stores
from gnsq_lite.writer import Writer

__all__ = ["DeadLetter", "OnGiveUp", "by_words", "read", "to_directory", "to_log", "to_topic"]


def to_log() -> OnGiveUp:
    """Return a callback that logs the message's metadata at level ERROR.  This is the Reader's default."""
    return log_give_up


def to_directory(path: str | os.PathLike[str]) -> OnGiveUp:
    """Return a callback that writes each message, its metadata and the exception to a JSON file in *path*.

    Raises OSError if the directory cannot be created.
    """
    return to_stores(Directory(path))


def read(path: str | os.PathLike[str]) -> Iterator[DeadLetter]:
    """Yield the dead letters that :func:`to_directory` wrote to *path*, in the order of their file names."""
    return Directory(path).letters()


def to_topic(topic: str, writer: Writer, *, bare: bool = False) -> OnGiveUp:
    """Return a callback that publishes each message to a dead-letter *topic*, as JSON with the metadata.

    If *bare* is true, the callback publishes only the body.  Raises InvalidName.
    """
    return to_stores(Topic(topic, lambda: writer, bare=bare))
