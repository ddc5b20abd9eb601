"""Several messages of one read that are answered together, so that a read costs one object.

Rows keep the frames as they came.  A handler of batches gets the frames as columns.  If the messages need different
answers, for example after an error, :meth:`Rows.split` makes single messages of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gnsq_lite._core import scan
from gnsq_lite.message import Message, release, unless_answered
from gnsq_lite.net.os_threads import native_rlock

#: Bytes that an id adds to ``Rows.id``, with the text between two ids.
_ID, _BETWEEN = 16, len(b"\nFIN ")
_MOST = 2**31 - 1


class Rows(Message):
    """The messages of one read.  They have one token, and so one answer, and count as ``_rows`` messages.

    ``id`` has all ids, joined so that one FIN command with this id finishes all messages.  ``timestamp_ns`` and
    ``attempts`` are the greatest, and ``body`` is empty.

    Attributes:
        frames: The messages as (data, at, end): the bytes of the read, and the positions of the first frame and after
            the last frame.
        oldest_ns: The least publish time.
    """

    __slots__ = ("_parts", "_rows", "frames", "oldest_ns")

    def __init__(
        self,
        connection: Any,
        data: bytes,
        at: int,
        end: int,
        rows: int,
        oldest_ns: int,
        newest_ns: int,
        attempts: int,
        ids: bytes,
    ) -> None:
        super().__init__(connection, newest_ns, attempts, ids, b"")
        self.frames, self._rows, self.oldest_ns = (data, at, end), rows, oldest_ns
        self._parts: list[Message] | None = None

    @property
    def is_split(self) -> bool:
        """Whether the messages must be answered one by one."""
        return self._parts is not None

    def copies(self) -> list[Message]:
        """Return the messages one by one, to read their fields.  They count as answered."""
        data, at, end = self.frames
        found: list[Message] = []
        scan(data[:end], at, _MOST, Message, self._connection, found)
        for message in found:
            message._received_at = self._received_at
            del message._token
        return found

    def split(self) -> list[Message]:
        """Return the messages one by one.  If the rows were unanswered, the messages are, and the rows have no token.

        Any thread may call this, also while another thread answers the rows.  All calls return the same list.
        """
        with _splitting:
            if self._parts is None:
                parts = self._parts = self.copies()
                token = release(self)
                if token is not None:
                    for message in parts:
                        message._token = token
                    connection: Any = self._connection
                    connection.keep_parts(parts)
            return self._parts

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        """Send a REQ for each of the messages."""
        for message in self.split():
            unless_answered(message.requeue, delay, backoff)

    def touch(self) -> None:
        """Send a TOUCH for each of the messages."""
        for message in self.split():
            unless_answered(message.touch)


#: Held while rows are split: a thread that finds the token of rows gone can then wait for the single messages.
_splitting = native_rlock()


def count_rows(messages: Iterable[Message]) -> int:
    """Return the number of messages, also of those in Rows."""
    return sum([message._rows for message in messages])


def count_ids(ids: Sequence[bytes]) -> int:
    """Return the number of ids in *ids*, some of which may be the ids of Rows."""
    ids = ids[:]  # another thread may change the list
    return (sum(map(len, ids)) + _BETWEEN * len(ids)) // (_ID + _BETWEEN)


def parts_of(messages: Iterable[Message]) -> list[Message]:
    """Replace Rows that are split by their single messages."""
    found: list[Message] = []
    for message in messages:
        found += message.split() if isinstance(message, Rows) and message.is_split else (message,)
    return found


def split_all(messages: Iterable[Message], above: int = -1) -> list[Message]:
    """Split the Rows with more than *above* attempts, and return all messages in their order."""
    found: list[Message] = []
    for message in messages:
        found += message.split() if isinstance(message, Rows) and message.attempts > above else (message,)
    return found


def copies_of(message: Message) -> list[Message]:
    """Return the message, or copies of the messages of Rows, to read their fields."""
    return message.copies() if isinstance(message, Rows) else [message]
