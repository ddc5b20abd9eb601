"""Dead letters (messages that were given up) and their stores: a directory, a topic, or Django's database.

The Reader sends FIN only after a store has the letter.  If every store fails, the Reader requeues the message.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from gnsq_lite import stacks
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.consume.settings import message_fields
from gnsq_lite.errors import BadMessageError, ClosedError, CompressedBodyError, MessageTooLarge, OptionError
from gnsq_lite.message import Message
from gnsq_lite.net.os_threads import is_patched, native_ident
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.reader import log_give_up
from gnsq_lite.recording.files import Files
from gnsq_lite.text import cut, escape
from gnsq_lite.wire.names import check_topic
from gnsq_lite.worker.dead_topic import TopicLetters
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.reader")

OnGiveUp = Callable[[Message], None]

#: Version of the JSON of a letter.
VERSION = 1
#: Maximum characters of a traceback in a letter.  Only the end of a longer traceback is kept.
_LONGEST_TRACEBACK = 16_384
#: Seconds between two attempts to lock a directory in a monkey-patched process.
_LOCKED = 0.005
#: Maximum number of letters in a directory, and maximum number of letters stored between two counts of its files.
_MOST, _RECOUNT = 100_000, 1_000
_WORDS = "must be 'log' or a comma-separated list of 'directory:PATH', 'topic:NAME', 'bodies:NAME' and 'django'"


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that was given up.

    Attributes:
        timestamp_ns: Time at which the message was published, in nanoseconds since 1970.
        given_up_at: Time at which the message was given up, in seconds since 1970.
        host: Name of the machine on which the message was given up.
        error_type: Class of the handler's exception, or "" if the handler did not run because no attempt was left.
    """

    topic: str
    channel: str
    body: bytes
    id: bytes
    timestamp_ns: int
    attempts: int
    nsqd_address: str
    given_up_at: float = 0.0
    host: str = ""
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    #: Name under which a store has yielded the letter, or "".  Not part of the letter's JSON, hence the last field.
    stored: str = field(default="", compare=False, repr=False)

    @property
    def name(self) -> str:
        """Return the letter's name in a store.  The name is the same if the message is given up again."""
        name = f"{self.topic}.{self.channel}.{self.timestamp_ns}.{self.id.hex()}"
        return self.stored or name.replace("#", "_").replace("/", "_")

    @property
    def key(self) -> str:
        """Return the letter's id in the ``dead`` commands, a hash of the name.  It is not the message id."""
        return hashlib.blake2b(self.name.encode(errors="surrogatepass"), digest_size=5).hexdigest()

    def to_json(self) -> bytes:
        """Return the letter as JSON, with the body in base64 and the message id in hex."""
        values = {**asdict(self), "id": self.id.hex(), "body": base64.b64encode(self.body).decode("ascii")}
        del values["stored"]
        return json.dumps({"version": VERSION, **values}).encode("ascii")


#: Name of a letter's field -> its type, and its maximum if it is a number.  Times end with the year 9999.
_LAST_SECOND = 253_402_300_799
_TYPES = {"str": str, "bytes": bytes, "int": int, "float": (int, float)}
_MAXIMA = {"timestamp_ns": _LAST_SECOND * 10**9, "given_up_at": _LAST_SECOND, "attempts": 65_535}
_FIELDS: dict[str, tuple[Any, int | None]] = {
    spec.name: (_TYPES[str(spec.type)], _MAXIMA.get(spec.name)) for spec in fields(DeadLetter)[:-1]
}


def from_json(data: bytes, stored: str = "") -> DeadLetter:
    """Return the letter of a JSON text made by :meth:`DeadLetter.to_json`.  Raises ValueError for other data."""
    try:
        found = json.loads(data)
        version = found.pop("version")
        body = base64.b64decode(found["body"], validate=True)
        values = {**found, "id": bytes.fromhex(found["id"]), "body": body}
        for name, value in values.items():
            kind, most = _FIELDS[name]
            if not isinstance(value, kind) or not (most is None or 0 <= value <= most):
                raise ValueError(f"{name} cannot be {cut(repr(value), 100)}")
        letter = DeadLetter(**values, stored=stored)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is not a dead letter: {type(error).__name__}: {error}") from None
    if version != VERSION:
        raise ValueError(f"this dead letter has version {version!r}; this gnsq_lite reads version {VERSION}")
    return letter


def letter_of(message: Message, error: BaseException | None) -> DeadLetter:
    """Make the letter of *message*.  *error* is the handler's exception, or None if the handler was not called."""
    try:
        body = message.body
    except CompressedBodyError:  # perhaps the handler failed for the same reason
        body = message.raw_body
    letter = DeadLetter(
        topic=message.topic,
        channel=message.channel,
        body=body,
        id=message.id,
        timestamp_ns=message.timestamp_ns,
        attempts=message.attempts,
        nsqd_address=message.nsqd_address,
        given_up_at=SYSTEM_CLOCK.wall(),
        host=os.uname().nodename,
        error="the message has no attempts left",
    )
    if error is None:
        return letter
    text, trace = cut(stacks.message_of(error)), stacks.of_error(error)[-_LONGEST_TRACEBACK:]
    return replace(letter, error_type=type(error).__qualname__, error=text, traceback=trace)


class Store(Protocol):
    """A store of letters.  The methods raise the errors of the store's disk, nsqd or database."""

    #: The store as written in ``on_give_up`` and in the ``dead`` commands, such as "directory:PATH".
    word: str

    def keep(self, letter: DeadLetter) -> None:
        """Store the letter durably."""

    def letters(self) -> Iterator[DeadLetter]:
        """Yield the letters.  The caller may remove the current letter."""

    def claim(self, letter: DeadLetter) -> AbstractContextManager[bool]:
        """Keep other commands from removing the letter in the ``with`` block.  The value is False if one has."""

    def remove(self, letter: DeadLetter) -> None:
        """Remove a letter that :meth:`letters` has yielded."""

    def close(self) -> None:
        """Close the connections of the store."""


class Directory:
    """A store that writes a JSON file (mode 0600) for each letter.  It creates a missing directory with mode 0700.

    A file is written under another name, synced and renamed, so it is never incomplete.  People may edit the files: a
    letter keeps its file's name, and only regular files of the directory itself are read, replaced or removed.

    Args:
        most: Maximum number of letters, accurate to about a thousand.  At the limit, :meth:`keep` raises OSError.
    Raises:
        OSError: the directory cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], most: int = _MOST) -> None:
        self.word = f"directory:{os.fspath(path)}"
        self._folder, self._most, self._room = Path(path), most, 0
        self._folder.mkdir(0o700, parents=True, exist_ok=True)

    def keep(self, letter: DeadLetter) -> None:
        """Write the file."""
        if self._room <= 0:
            self._room = min(_RECOUNT, self._most - self.count())
        if self._room <= 0:
            raise OSError(errno.ENOSPC, f"there are {self._most} dead letters: retry or drop some", str(self._folder))
        # The name is unique.  tempfile is not used, because its locks may block a native thread (docs/handlers).
        temporary = self._folder / f".{letter.name}.json.{os.getpid()}.{native_ident()}.part"
        try:
            Files().replace(self._folder / f"{letter.name}.json", letter.to_json(), temporary, 0o600)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._room -= 1

    def count(self) -> int:
        """Return the number of letters."""
        with os.scandir(self._folder) as entries:
            return sum(entry.name.endswith(".json") for entry in entries)

    def letters(self) -> Iterator[DeadLetter]:
        """Yield the letters in the order of their names.  Log each file that is not a letter."""
        for name in sorted(name for name in os.listdir(self._folder) if name.endswith(".json")):
            try:
                yield from_json(_read_regular(os.path.join(self._folder, name)), name.removesuffix(".json"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                log.warning("%s", escape(f"{name}: {getattr(error, 'strerror', None) or error}"))

    @contextmanager
    def claim(self, letter: DeadLetter) -> Iterator[bool]:
        """Lock the directory, and yield whether the file exists."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            _lock(folder)
            yield os.path.lexists(self._file(letter))
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # because gevent's os.close() closes a directory later
            os.close(folder)

    def remove(self, letter: DeadLetter) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            os.unlink(self._file(letter))

    def _file(self, letter: DeadLetter) -> str:
        return os.path.join(self._folder, f"{letter.name}.json")

    def close(self) -> None:
        """Do nothing."""


def _lock(folder: int) -> None:
    """Lock an open directory.  In a monkey-patched process let other greenlets run, one of which may hold the lock."""
    while is_patched():
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOCKED)
    fcntl.flock(folder, fcntl.LOCK_EX)


class Topic:
    """A store that publishes letters to a topic as JSON.  If *bare* is true, the store publishes only the bodies.

    Args:
        writer: Function that returns the Writer.  The store calls this function for each letter.
        reader: Keywords of the Reader that :meth:`letters` uses.
    """

    def __init__(
        self, topic: str, writer: Callable[[], Writer], *, bare: bool = False, reader: dict[str, Any] | None = None
    ) -> None:
        check_topic(topic)
        self.word = f"{'bodies' if bare else 'topic'}:{topic}"
        self._topic, self._writer, self._bare, self._options = topic, writer, bare, reader or {}
        self._reading: TopicLetters | None = None

    def keep(self, letter: DeadLetter) -> None:
        """Publish the letter, without its traceback if it is too large.  Raises MessageTooLarge, PublishError."""
        if self._bare:
            self._writer().publish(self._topic, letter.body)
            return
        try:
            self._writer().publish(self._topic, letter.to_json())
        except (BadMessageError, MessageTooLarge):
            self._writer().publish(self._topic, replace(letter, traceback="").to_json())

    def letters(self) -> Iterator[DeadLetter]:
        """Yield the letters that were published before this call.  Letters that are not removed stay in the topic.

        Raises ConnectError, after the letters of the other nsqds, if an nsqd cannot be reached.
        """
        self._reading = TopicLetters(self._topic, self._options)
        try:
            for key, message in self._reading:
                yield self._letter(message, key)
        finally:
            self.close()

    def _letter(self, message: Message, key: str) -> DeadLetter:
        try:
            return from_json(message.body, key)
        except ValueError:  # a *bare* store published only the body
            return replace(letter_of(message, None), channel="", error="", stored=key)

    def claim(self, letter: DeadLetter) -> AbstractContextManager[bool]:
        """Do nothing, because nsqd sends a message to one reader."""
        return nullcontext(True)

    def remove(self, letter: DeadLetter) -> None:
        """Finish the message."""
        if self._reading is None:
            raise ClosedError("letters are removed while letters() yields them")
        self._reading.remove(letter.stored)

    def close(self) -> None:
        """Requeue the letters that were not removed, and disconnect."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()


#: Name of an integration's store -> function that makes the store from the text after the colon.
STORES: dict[str, Callable[[str], Store]] = {}


def to_stores(*stores: Store) -> OnGiveUp:
    """Return an ``on_give_up`` that stores each message in the first store that works, and logs a WARNING."""

    def keep(message: Message) -> None:
        letter = letter_of(message, sys.exc_info()[1])
        for number, store in enumerate(stores, 1):
            try:
                store.keep(letter)
            except Exception as error:
                if number == len(stores):
                    raise
                log_safely(log, logging.WARNING, "cannot keep a dead letter in %s: %s", store.word, error)
                continue
            text = "gave up message %r of %s/%s after %d attempts; the message is kept in %s: %s"
            why = f"{letter.error_type}: {letter.error}".removeprefix(": ")
            arguments = (letter.id, letter.topic, letter.channel, letter.attempts, store.word, why)
            log_safely(log, logging.WARNING, text, *arguments, extra=message_fields(message))
            return

    return keep


def check_words(words: str) -> None:
    """Check *words* as :func:`open_stores` does, without opening a store.  Raises OptionError, InvalidName."""
    for word in () if words == "log" else words.split(","):
        kind, _, rest = word.partition(":")
        if kind in ("topic", "bodies") and rest:
            check_topic(rest)
        elif not (kind == "directory" and rest) and kind not in STORES:
            more = "; 'django' needs the app gnsq_lite.contrib.django, and django.setup()" if kind == "django" else ""
            raise OptionError("on_give_up", words, _WORDS + more)


def open_stores(words: str, writer: Callable[[], Writer], reader: dict[str, Any] | None = None) -> Sequence[Store]:
    """Return the stores that *words* name, such as ``"topic:NAME,directory:PATH"``.

    Args:
        writer: Function that returns the Writer for a topic.
        reader: Keywords of the Reader that reads letters from a topic.
    """
    check_words(words)
    stores: list[Store] = []
    for word in words.split(","):
        kind, _, rest = word.partition(":")
        if kind == "directory":
            stores.append(Directory(rest))
        elif kind in STORES:
            stores.append(STORES[kind](rest))
        else:
            stores.append(Topic(rest, writer, bare=kind == "bodies", reader=reader))
    return stores


def by_words(words: str, writer: Callable[[], Writer]) -> OnGiveUp:
    """Return the ``on_give_up`` that *words* name, such as "log".  Raises OptionError, InvalidName, OSError."""
    return log_give_up if words == "log" else to_stores(*open_stores(words, writer))


def _read_regular(file: str) -> bytes:
    """Return the content of a file.  Raises ValueError for a link, a directory or a FIFO."""
    if not stat.S_ISREG(os.lstat(file).st_mode):
        raise ValueError("this is not a regular file")
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read()
