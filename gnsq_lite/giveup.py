"""What to do with a message that had more than ``max_attempts`` (MSG-4): ready-made ``on_give_up`` callbacks.

FIN is sent only after the callback has returned; when it raises, the message is requeued and nothing is lost.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gnsq_lite.errors import CompressedBodyError, OptionError
from gnsq_lite.message import Message
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.reader import log_give_up
from gnsq_lite.wire.names import check_topic
from gnsq_lite.writer import Writer

OnGiveUp = Callable[[Message], None]


@dataclass(frozen=True)
class GivenUp:
    """A message as :func:`to_directory` has kept it."""

    topic: str
    channel: str
    nsqd_address: str
    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes


def to_log() -> OnGiveUp:
    """Log the message's metadata at ERROR, as a Reader does by itself."""
    return log_give_up


def to_directory(path: str | os.PathLike[str]) -> OnGiveUp:
    """Write each message, with its metadata, to a JSON file of its own in *path*; :func:`read` reads them back.

    A file is written under another name, synced and renamed: it is there whole or not at all.  The same message given
    up twice is one file.  A directory that is missing is made with mode 0700, and files have mode 0600.  Raises OSError
    when the directory cannot be made.
    """
    folder = Path(path)
    folder.mkdir(0o700, parents=True, exist_ok=True)

    def keep(message: Message) -> None:
        record = {
            "topic": message.topic,
            "channel": message.channel,
            "nsqd_address": message.nsqd_address,
            "id": message.id.hex(),
            "timestamp_ns": message.timestamp_ns,
            "attempts": message.attempts,
            "body": base64.b64encode(_kept_body(message)).decode("ascii"),
        }
        name = f"{message.topic}.{message.channel}.{message.timestamp_ns}.{message.id.hex()}.json"
        _write_atomically(folder, name.replace("#", "_"), json.dumps(record).encode("ascii"))

    return keep


def _kept_body(message: Message) -> bytes:
    try:
        return message.body
    except CompressedBodyError:  # which may be why it is given up
        return message.raw_body


def _write_atomically(folder: Path, name: str, data: bytes) -> None:
    # A name that no other writer has, found without the locks of tempfile: this may be a native thread (docs/handlers).
    temporary = folder / f".{name}.{os.getpid()}.{native_ident()}.part"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike[str]) -> Iterator[GivenUp]:
    """Yield the messages that :func:`to_directory` has kept in *path*, in the order of their names."""
    for file in sorted(Path(path).glob("*.json")):
        record = json.loads(file.read_bytes())
        record["id"] = bytes.fromhex(record["id"])
        record["body"] = base64.b64decode(record["body"])
        yield GivenUp(**record)


def to_topic(topic: str, writer: Writer) -> OnGiveUp:
    """Publish the body to a dead-letter *topic*; the message is finished once nsqd has said OK.

    Raises InvalidName.
    """
    check_topic(topic)

    def publish(message: Message) -> None:
        writer.publish(topic, _kept_body(message))

    return publish


def check_name(name: str) -> None:
    """Raise OptionError or InvalidName for a word that :func:`by_name` does not take; opens and makes nothing."""
    kind, _, rest = name.partition(":")
    if kind == "topic" and rest:
        check_topic(rest)
    elif name != "log" and not (kind == "directory" and rest):
        raise OptionError("on_give_up", name, "must be 'log', 'directory:PATH' or 'topic:NAME'")


def by_name(name: str, writer: Callable[[], Writer]) -> OnGiveUp:
    """Return the callback of a configuration's word: ``log``, ``directory:PATH`` or ``topic:NAME``.

    *writer* makes the Writer that ``topic:`` needs.  Raises OptionError, InvalidName.
    """
    check_name(name)
    kind, _, rest = name.partition(":")
    if kind == "directory":
        return to_directory(rest)
    return to_topic(rest, writer()) if kind == "topic" else to_log()
