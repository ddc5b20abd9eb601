"""Ready-made ``on_give_up`` callbacks (MSG-4) for a Reader; a Worker takes words such as ``"directory:PATH"``."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gnsq_lite.reader import log_give_up
from gnsq_lite.worker.dead import DeadLetter, Directory, OnGiveUp, Topic, by_words, to_stores
from gnsq_lite.writer import Writer

__all__ = ["DeadLetter", "OnGiveUp", "by_words", "read", "to_directory", "to_log", "to_topic"]


def to_log() -> OnGiveUp:
    """Log the message's metadata at ERROR, as a Reader does by default."""
    return log_give_up


def to_directory(path: str | os.PathLike[str]) -> OnGiveUp:
    """Write one JSON file in *path* for each message, with its metadata and the exception.

    Raises OSError if the directory cannot be created.
    """
    return to_stores(Directory(path))


def read(path: str | os.PathLike[str]) -> Iterator[DeadLetter]:
    """Yield the letters that :func:`to_directory` has kept in *path*, in the order of their names."""
    return Directory(path).letters()


def to_topic(topic: str, writer: Writer, *, bare: bool = False) -> OnGiveUp:
    """Publish each message to a dead-letter *topic*, as JSON with the metadata, or with *bare* its body alone.

    Raises InvalidName.
    """
    return to_stores(Topic(topic, lambda: writer, bare=bare))
