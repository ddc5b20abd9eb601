"""Parses the bytes of a client into commands.

The parser shares no code with the client's encoder, because tests would not find a bug in shared code.  Tests
check the parser and the encoder against the same golden bytes.  The parser checks a body's size before it buffers the
body.  Errors have nsqd's texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

_INT = Struct(">i")

#: nsqd reads a command line into a buffer of this size (nsqd/client_v2.go:19 @v1.3.0).
MAX_LINE = 16 * 1024


class CommandError(Exception):
    """A client's mistake.  The reply is an error frame, and a fatal error also closes the connection."""

    def __init__(self, code: str, text: str | bytes, *, fatal: bool = True) -> None:
        super().__init__(code, text)
        self.code, self.text, self.fatal = code, text, fatal

    @property
    def frame_body(self) -> bytes:
        """The error frame's data as nsqd formats it: code, space, text."""
        text = self.text if isinstance(self.text, bytes) else self.text.encode("utf-8", "surrogateescape")
        return self.code.encode("ascii") + b" " + text


class LineTooLong(Exception):
    """A command line is longer than 16 KiB.  nsqd then closes the connection without an error frame."""


class Command(NamedTuple):
    """One command.  An MPUB has ``bodies``.  Any other command has ``body``, which may be empty."""

    words: list[bytes]
    body: bytes = b""
    bodies: list[bytes] | None = None


@dataclass(frozen=True)
class BodyRule:
    """Size limit for the body of a verb, and nsqd's error texts."""

    limit: int
    code: str
    size_unread: str
    too_small: str
    too_big: str
    unread: str
    multi: bool = False


def body_rules(max_msg_size: int, max_body_size: int) -> dict[bytes, BodyRule]:
    """Return the rule of each verb that has a body (nsqd/protocol_v2.go @v1.3.0)."""
    rules = {
        verb.encode(): BodyRule(
            limit=max_body_size,
            code="E_BAD_BODY",
            size_unread=f"{verb} failed to read body size",
            too_small=f"{verb} invalid body size %d",
            too_big=f"{verb} body too big %d > %d",
            unread=f"{verb} failed to read body",
            multi=verb == "MPUB",
        )
        for verb in ("IDENTIFY", "AUTH", "MPUB")
    }
    for verb in ("PUB", "DPUB"):
        rules[verb.encode()] = BodyRule(
            limit=max_msg_size,
            code="E_BAD_MESSAGE",
            size_unread=f"{verb} failed to read message body size",
            too_small=f"{verb} invalid message body size %d",
            too_big=f"{verb} message too big %d > %d",
            unread=f"{verb} failed to read message body",
        )
    return rules


class CommandReader:
    """Splits a client's bytes into commands.

    It calls *begin* with the words of each command that has a body, before it reads the body's size.  *begin* may
    raise CommandError, because nsqd refuses some commands before it reads their bodies.
    """

    def __init__(
        self,
        max_msg_size: int,
        max_body_size: int,
        begin: Callable[[list[bytes]], None] = lambda words: None,
    ) -> None:
        self._rules = body_rules(max_msg_size, max_body_size)
        self._max_msg_size, self._max_body_size = max_msg_size, max_body_size
        self._begin = begin
        self._buffer = b""
        self._at = 0
        self._chunks: list[bytes] = []
        self._pending = 0  # bytes in _chunks
        self._need = 1  # number of unread bytes that next() needs to make progress
        self._words: list[bytes] | None = None  # words of the command whose body is incomplete
        self._rule: BodyRule | None = None
        self._size = -1
        self._batch: _Batch | None = None

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._chunks.append(data)
        self._pending += len(data)

    def _gather(self) -> bool:
        """Append received bytes to the buffer.  Return whether next() can make progress."""
        if self.unread() < self._need:
            return False
        if self._pending:
            self._buffer = b"".join([self._buffer[self._at :], *self._chunks])
            self._at, self._pending = 0, 0
            self._chunks.clear()
        return True

    def next(self) -> Command | None:
        """Parse the next command, or return None if the command is incomplete.  Raises CommandError, LineTooLong."""
        if not self._gather():
            return None
        if self._rule is None:
            end = self._buffer.find(b"\n", self._at)
            if end < 0 or end - self._at >= MAX_LINE:
                self._no_line()
                return None
            line = self._buffer[self._at : end]
            self._at = end + 1
            self._need = 1
            if line.endswith(b"\r"):
                line = line[:-1]
            words = line.split(b" ")
            rule = self._rules.get(words[0])
            if rule is None:
                return Command(words)
            self._begin(words)
            self._words, self._rule, self._size = words, rule, -1
        return self._with_body(self._rule)

    def _no_line(self) -> None:
        left = len(self._buffer) - self._at
        if left >= MAX_LINE:
            raise LineTooLong
        self._need = left + 1

    def _with_body(self, rule: BodyRule) -> Command | None:
        if self._size < 0:
            size = self._int()
            if size is None:
                return None
            if size <= 0:
                raise CommandError(rule.code, rule.too_small % size)
            if size > rule.limit:
                raise CommandError(rule.code, rule.too_big % (size, rule.limit))
            self._size = size
        words = self._words or []
        if rule.multi:
            bodies = self._many()
            if bodies is None:
                return None
            self._done()
            return Command(words, b"", bodies)
        if not self._has(self._size):
            return None
        body = self._buffer[self._at : self._at + self._size]
        self._at += self._size
        self._done()
        return Command(words, body)

    def _done(self) -> None:
        self._words, self._rule, self._size, self._batch, self._need = None, None, -1, None, 1

    def _has(self, count: int) -> bool:
        if len(self._buffer) - self._at >= count:
            return True
        self._need = count
        return False

    def _int(self) -> int | None:
        if not self._has(4):
            return None
        (value,) = _INT.unpack_from(self._buffer, self._at)
        self._at += 4
        return int(value)

    def _many(self) -> list[bytes] | None:
        """Parse the messages of an MPUB.  As nsqd does, use the message count and ignore the body's size."""
        if self._batch is None:
            count = self._int()
            if count is None:
                return None
            if not 0 < count <= (self._max_body_size - 4) // 5:
                raise CommandError("E_BAD_BODY", f"MPUB invalid message count {count}")
            self._batch = _Batch(count)
        batch = self._batch
        while len(batch.bodies) < batch.count:
            if batch.size < 0 and not self._next_size(batch):
                return None
            if not self._has(batch.size):
                return None
            batch.bodies.append(self._buffer[self._at : self._at + batch.size])
            self._at += batch.size
            batch.size = -1
        return batch.bodies

    def _next_size(self, batch: _Batch) -> bool:
        size = self._int()
        if size is None:
            return False
        if size <= 0:
            raise CommandError("E_BAD_MESSAGE", f"MPUB invalid message({len(batch.bodies)}) body size {size}")
        if size > self._max_msg_size:
            raise CommandError("E_BAD_MESSAGE", f"MPUB message too big {size} > {self._max_msg_size}")
        batch.total += size + 4
        if batch.total + 4 > self._max_body_size:  # this limit bounds the memory; nsqd does not have it
            raise CommandError("E_BAD_BODY", f"MPUB body too big {batch.total + 4} > {self._max_body_size}")
        batch.size = size
        return True

    def at_end(self) -> None:
        """Raise CommandError if the client's stream ended within the body of a command."""
        rule = self._rule
        if rule is None:
            return
        if self._size < 0:
            raise CommandError(rule.code, rule.size_unread)
        if not rule.multi:
            raise CommandError(rule.code, rule.unread)
        if self._batch is None:
            raise CommandError("E_BAD_BODY", "MPUB failed to read message count")
        if self._batch.size < 0:
            raise CommandError("E_BAD_MESSAGE", f"MPUB failed to read message({len(self._batch.bodies)}) body size")
        raise CommandError("E_BAD_MESSAGE", "MPUB failed to read message body")

    def unread(self) -> int:
        """Return the number of unparsed bytes."""
        return len(self._buffer) - self._at + self._pending

    def take_rest(self) -> bytes:
        """Remove and return the unparsed bytes.  Sessions call this before TLS or compression starts."""
        rest = b"".join([self._buffer[self._at :], *self._chunks])
        self._buffer, self._at, self._pending, self._need = b"", 0, 0, 1
        self._chunks.clear()
        return rest


class _Batch:
    """A partly parsed MPUB body."""

    __slots__ = ("bodies", "count", "size", "total")

    def __init__(self, count: int) -> None:
        self.count, self.size, self.total = count, -1, 0
        self.bodies: list[bytes] = []


# -- words ----------------------------------------------------------------------------------------------------------


def base10(word: bytes) -> int | None:
    """Parse the decimal number *word* modulo 2**64.  Return None if *word* is no number.

    Source: internal/protocol/byte_base10.go @v1.3.0.  As in nsqd, an empty *word* is 0.
    """
    if not word:
        return 0
    if not word.isdigit():  # bytes.isdigit() accepts ASCII digits only
        return None
    value = 0
    for digit in word:
        value = (value * 10 + digit - 48) & 0xFFFFFFFFFFFFFFFF
    return value


def as_int64(value: int) -> int:
    """Convert *value* to Go's int64.  A value out of range wraps around."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quoted(word: bytes) -> str:
    """Quote *word* as Go's ``%q`` does."""
    out = []
    for char in word.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            out.append(char)
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(out)}"'
