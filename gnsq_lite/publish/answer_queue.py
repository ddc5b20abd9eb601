"""The publishes of one connection that nsqd has not answered, and what becomes of each (PUB-2).

nsqd answers in the order it reads, so an answer belongs to the oldest publish.  No I/O and no loop here: the
connection's owner passes in what it read, and gets back what that means for the publishes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gnsq_lite.dialect import PublishRequest
from gnsq_lite.errors import NsqdError, NSQError, UnexpectedFrame
from gnsq_lite.wire.constants import OK

#: nsqd's answer to a publish, as a frame; and how one begins behind its size that says OK, and maybe more.
_OK_FRAME = b"\0\0\0\6\0\0\0\0OK"
_OK_HEAD = _OK_FRAME[4:]
#: Reads any other answer: of (request, body), its receipt.  Raises ProtocolError.
Read = Callable[[PublishRequest, bytes], Any]


def count_oks(data: bytes) -> int:
    """Return how many OKs a read consists of; 0: it holds something else."""
    count = len(data) // len(_OK_FRAME)
    return count if data == _OK_FRAME * count else 0


def _answers(data: bytes) -> list[bytes]:
    """Return the bodies of the answers that a read consists of; none where it holds anything else."""
    at, bodies = 0, []
    while data.startswith(_OK_HEAD, at + 4):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        bodies.append(data[at + 8 : end])
        at = end
    return bodies if at == len(data) else []


class Unanswered(Protocol):
    """What the queue knows of a publish."""

    #: How many messages it is, and how many bytes of them are counted as pending.
    count: int
    cost: int
    #: How it was asked for, where that was more than a plain message or batch.
    request: PublishRequest | None
    #: How often it may still be sent again although its outcome is unknown.
    retries: int
    #: Whether an nsqd may have it; and whether an earlier try, whose answer did not come, is why.
    sent: bool
    in_doubt: bool

    def done(self) -> bool:
        """Whether it has its outcome, if only that its deadline has passed."""

    def settle(self, value: Any = None) -> bool:
        """Set its outcome: nsqd has it, and said *value*.  Return False if it already had one."""

    def is_ok(self) -> bool:
        """Whether nsqd has taken it."""

    def stand_in(self) -> Any:
        """Return what takes the answer that may still come, when the publish is sent elsewhere."""


P = TypeVar("P", bound=Unanswered)


@dataclass(slots=True)
class Loss(Generic[P]):
    """What the end of a connection means for its unanswered publishes; each list is in order."""

    #: The one that nsqd closed the connection for.
    refused: P | None = None
    #: To be sent again.
    again: list[P] = field(default_factory=list)
    #: nsqd may have read them.
    unknown: list[P] = field(default_factory=list)


class Taken:
    """How many messages nsqd took, by the answers that were read, and how many bytes of them were counted as pending.

    One thread at a time adds to it: the loop, or whoever holds the lock of the callers' threads.
    """

    __slots__ = ("bytes", "messages", "on_more", "open")

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        #: The publishes that the loop carries out and that have no outcome yet.
        self.open: set[Any] = set()
        #: Called after each read of answers, where somebody waits for all outcomes.
        self.on_more: Callable[[], None] | None = None


class AnswerQueue(deque[P]):
    """Unanswered publishes, the oldest first; one whose deadline has passed keeps its place."""

    __slots__ = ("_read",)

    def __init__(self, publications: Iterable[P] = (), *, read: Read) -> None:
        super().__init__(publications)
        self._read = read

    def receipt(self, body: bytes) -> Any:
        """Return the receipt in the answer *body* to the oldest, None for OK.

        Raises UnexpectedFrame, ProtocolError: it is not understood, and the end of the connection settles the oldest.
        """
        if not self:
            raise UnexpectedFrame(f"an answer without a publish: {body[:50]!r}")
        return self._receipt(self[0], body)

    def _receipt(self, publication: P, body: bytes) -> Any:
        if body == OK:
            return None
        if publication.request is None:
            raise UnexpectedFrame(f"not an OK: {body[:50]!r}")
        return self._read(publication.request, body)

    def _receipts(self, data: bytes) -> list[Any]:
        """Return one for each answer of a read; none where it is no such read, or not understood."""
        bodies = _answers(data)
        try:
            return [self._receipt(self[at], body) for at, body in enumerate(bodies)]
        except (NSQError, IndexError):
            return []

    def take_oks(self, data: bytes, total: Taken) -> bool:
        """Settle the oldest if a read is that many OKs, or traces, and nothing else; return False otherwise.

        They are added to *total*.
        """
        count = 1 if data == _OK_FRAME else count_oks(data)  # most reads are one, where one waits for each
        receipts = None if count else self._receipts(data)
        count = len(receipts) if receipts else count
        if not count or len(self) < count:
            return False
        taken = freed = 0
        for at in range(count):
            publication = self.popleft()
            if publication.settle(receipts[at] if receipts else None):
                taken += publication.count
                freed += publication.cost
            total.open.discard(publication)
        total.messages += taken
        total.bytes += freed
        if total.on_more is not None:
            total.on_more()
        return True

    def lose(self, error: NSQError) -> Loss[P]:
        """Empty the queue of a connection that ended with *error*.

        An error frame answers the oldest, and nsqd has read nothing after it.  After any other end nsqd may have read
        everything: publishes with a retry left are sent again, and the others have an unknown outcome.
        """
        loss: Loss[P] = Loss()
        unread = isinstance(error, NsqdError)
        if unread and self:
            loss.refused = self.popleft()
        for publication in self:
            if publication.done():
                continue
            if unread:
                publication.sent = publication.in_doubt
                loss.again.append(publication)
            elif publication.retries > 0:
                _spend_retry(publication)
                loss.again.append(publication)
            else:
                loss.unknown.append(publication)
        self.clear()
        return loss

    def take_repeatable(self, may_move: Callable[[P], bool]) -> list[P]:
        """Remove and return, in order, publishes with a retry left that *may_move*; stand-ins keep their places."""
        taken: list[P] = []
        for place, publication in enumerate(self):
            if publication.retries > 0 and not publication.done() and may_move(publication):
                _spend_retry(publication)
                self[place] = publication.stand_in()
                taken.append(publication)
        return taken


def _spend_retry(publication: Unanswered) -> None:
    publication.retries -= 1
    publication.sent = publication.in_doubt = True
