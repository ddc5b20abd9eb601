"""The message that a handler receives.  A message is answered once, with FIN or REQ, through its connection.

The Reader finishes a message when its handler returns, and requeues or gives up the message when the handler raises
(MSG-1).  A handler may also answer its message itself.  After :meth:`Message.enable_async` any thread or greenlet may
answer the message, also when the handler has returned (MSG-2).  The library itself sends TOUCH only if the option
``touch`` asks for it (MSG-3).

An answer deletes the message's token, its attribute ``_token``.  Of several threads that delete a token with
swap_token(), one succeeds, so a message has only one answer.  Only this file and the C part (see
:mod:`gnsq_lite._core`) read or delete tokens.  All other code calls the functions and methods of this file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from gnsq_lite._core import columns, finish_open, know_message, swap_token
from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.option_fields import check_number

NEW: Final = 0  #: Value of a message's token: the message was received.
ASYNC: Final = 1  #: enable_async() keeps the message open.
EXPIRED: Final = 2  #: The message has expired: it timed out, or its connection was lost.
LATE_ASYNC: Final = 3  #: The message has expired, and enable_async() keeps it open.


class Requeue(Exception):
    """Raised by a handler to requeue its message.

    Args:
        delay: Seconds until nsqd sends the message again.  None means the Reader's delay for this number of attempts.
        backoff: Whether the requeue counts as a failure for the Reader's backoff (BACK-5).
        rows: Of a handler of batches: for each message of the batch, in its order, whether to requeue it; the Reader
            finishes the others.  A list of bools, a pyarrow array or a numpy array.  None means all messages.
    Raises:
        OptionError: *delay* is negative or not finite.
    """

    def __init__(
        self, delay: float | None = None, backoff: bool = True, *, rows: Iterable[object] | None = None
    ) -> None:
        super().__init__(delay, backoff)
        self.delay, self.backoff = checked_delay(delay), backoff
        self.rows: list[object] | None = None if rows is None else list(getattr(rows, "to_pylist", lambda: rows)())


class GiveUp(Exception):
    """Raised by a handler to give up its message: the Reader calls ``on_give_up``, and sends FIN if it returns.

    Args:
        why: Reason for the log and the dead letter.
        backoff: Whether the give-up counts as a failure for the Reader's backoff.
    """

    def __init__(self, why: str = "", backoff: bool = False) -> None:
        super().__init__(why)
        self.why, self.backoff = why, backoff


class TimeLimitExceeded(BaseException):
    """Raised once in a handler that runs in a greenlet and exceeds ``time_limit``, where the handler waits.

    ``except Exception`` does not catch this BaseException.  If the handler does not catch this exception, the Reader
    requeues or gives up the message.  For a handler in a thread, only ``on_failure`` gets the exception.  ``seconds``
    is the limit.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the handler exceeded its time limit of {self.seconds:g} s"


def checked_delay(delay: float | None) -> float | None:
    """Return *delay*.  Raises OptionError if *delay* is negative, infinite or not a number (WIRE-8)."""
    return None if delay is None else check_number("delay", delay, 0, math.inf)


class Answers(Protocol):
    """Interface of a connection for its messages.  Any thread or greenlet may call the methods."""

    #: Collects the FINs for handlers that returned.  If it is None, ``handled`` is called instead.
    fins: Any
    topic: str
    channel: str
    address: str
    #: Monotonic time of the read that received the message; valid during Message.__init__.
    read_at: float
    #: Seconds after delivery at which nsqd times a message out.  TOUCH extends them up to ``max_msg_timeout``.
    msg_timeout: float
    max_msg_timeout: float

    def finish(self, message: Message) -> None: ...

    def finish_now(self, message: Message) -> None: ...

    def handled(self, message: Message) -> None:
        """Finish a message whose handler has returned.  The FIN may be sent together with other FINs."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def answer_late(self, message: Message, *, finished: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Write the queued answers now, or when another thread has ended its write.  Call it in the loop's thread."""

    def handler_returned_unanswered(self, message: Message) -> None:
        """Record that the handler of *message* returned without an answer."""

    def skipped(self, message: Message) -> None:
        """Record that *message* expired before a handler was called with it."""


class Message:
    """One message from nsqd.

    Attributes:
        body: The published bytes.
        id: The message's id, 16 bytes.
        attempts: Number of times nsqd has sent the message, including this time; 1 to 65535.  If ``not_before``
            returned a time, only the times since then that this process remembers.
        timestamp_ns: Time of publishing by nsqd's clock, in nanoseconds since 1970.
        partition, trace_id, internal_id, headers: Values of Youzan's NSQ.  With plain NSQ they are None.
    """

    __slots__ = ("_connection", "_extended_to", "_received_at", "_token", "attempts", "body", "id", "timestamp_ns")

    partition: int | None = None
    internal_id: int | None = None
    trace_id: int | None = None
    headers: dict[str, object] | None = None
    #: Number of messages that this object stands for (see :mod:`gnsq_lite.consume.rows`).
    _rows: int = 1

    def __init__(self, connection: Answers, timestamp_ns: int, attempts: int, id: bytes, body: bytes) -> None:
        self._connection = connection
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.id = id
        self.body = body
        self._received_at = connection.read_at
        self._token = NEW

    @property
    def raw_body(self) -> bytes:
        """Body as nsqd sent it.  With Youzan's NSQ ``raw_body`` may be compressed; ``body`` is always decompressed."""
        return self.body

    @property
    def timestamp(self) -> datetime:
        """Time of publishing by nsqd's clock, in UTC, with microseconds."""
        seconds, ns = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=ns // 1000)

    @property
    def topic(self) -> str:
        """Topic of the message."""
        return self._connection.topic

    @property
    def channel(self) -> str:
        """Channel of the message."""
        return self._connection.channel

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that sent the message."""
        return self._connection.address

    @property
    def received_at(self) -> float:
        """Time, by ``time.monotonic()``, at which the Reader received the message."""
        return self._received_at

    @property
    def deadline(self) -> float:
        """Time, by ``time.monotonic()``, at which nsqd sends the message again if it is unanswered (MSG-5, MSG-6)."""
        try:
            return self._extended_to
        except AttributeError:
            return self._received_at + self._connection.msg_timeout

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has passed without an answer.  nsqd then refuses FIN, REQ and TOUCH."""
        return not self.has_responded and time.monotonic() >= self.deadline

    @property
    def has_responded(self) -> bool:
        """Whether the message was finished or requeued."""
        return not hasattr(self, "_token")

    @property
    def is_async(self) -> bool:
        """Whether :meth:`enable_async` was called and the message has no answer."""
        return getattr(self, "_token", NEW) in (ASYNC, LATE_ASYNC)

    def finish(self) -> None:
        """Send FIN: nsqd removes the message from the channel.  Raises AlreadyAnswered."""
        if self._claim("finish") >= EXPIRED:
            self._connection.answer_late(self, finished=True)
        else:
            self._connection.finish(self)

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        """Send REQ: nsqd sends the message again.

        Args:
            delay: Seconds until nsqd sends the message again, at most nsqd's ``--max-req-timeout``.  None means the
                Reader's delay for this number of attempts (``requeue_delay``).
            backoff: Whether the requeue counts as a failure for the Reader's backoff.
        Raises:
            AlreadyAnswered, OptionError: No REQ was sent.
        """
        checked_delay(delay)
        if self._claim("requeue") >= EXPIRED:
            self._connection.answer_late(self, finished=False)
        else:
            self._connection.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Send TOUCH: nsqd restarts the message's ``msg_timeout``.  Raises AlreadyAnswered.

        The new deadline is at most nsqd's ``--max-msg-timeout`` after the delivery.
        """
        if self.has_responded:
            raise AlreadyAnswered(f"touch: message {self.id!r} has already been answered")
        connection = self._connection
        ceiling = self._received_at + connection.max_msg_timeout
        self._extended_to: float = min(time.monotonic() + connection.msg_timeout, ceiling)
        connection.touch(self)

    def enable_async(self) -> None:
        """Keep the message open after the handler returns.  Any thread or greenlet can then answer the message.

        Raises AlreadyAnswered.
        """
        if not (swap_token(self, NEW, ASYNC) or swap_token(self, EXPIRED, LATE_ASYNC) or self.is_async):
            raise AlreadyAnswered(f"enable_async: message {self.id!r} has already been answered")

    def _expire(self) -> bool:
        """Mark the message as timed out at nsqd.  Return False if it was answered.  The loop's thread calls this."""
        return swap_token(self, NEW, EXPIRED) or swap_token(self, ASYNC, LATE_ASYNC)

    def _claim(self, what: str) -> int:
        for token in (NEW, ASYNC, EXPIRED, LATE_ASYNC):  # another thread may change the token only in this order
            if swap_token(self, token, None):
                return token
        raise AlreadyAnswered(f"{what}: message {self.id!r} has already been answered")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} attempts={self.attempts} body={len(self.raw_body)} bytes>"


def is_open(message: Message) -> bool:
    """Return whether the message is neither answered nor marked as expired."""
    return getattr(message, "_token", EXPIRED) < EXPIRED


def is_expired(message: Message) -> bool:
    """Return whether the message is marked as expired, and neither answered nor kept open by enable_async()."""
    return getattr(message, "_token", None) == EXPIRED


def release(message: Message) -> int | None:
    """Delete and return the token, or return None if the message is answered."""
    try:
        return message._claim("release")
    except AlreadyAnswered:
        return None


def claim(message: Message) -> bool:
    """Delete the token, if any, before an answer.  Return False if the message was marked as expired."""
    return (release(message) or NEW) < EXPIRED


def finish_new(message: Message) -> bool:
    """Finish a message whose handler has returned, unless the handler answered it.

    Return False, without an answer, if enable_async() kept the message open or if the message has timed out.
    """
    if not swap_token(message, NEW, None):
        return message.has_responded
    connection = message._connection
    if connection.fins is None or connection.fins.is_alone:
        connection.handled(message)
    else:
        connection.fins.add(message.id)
    return True


def finish_now(message: Message) -> None:
    """Finish *message* as its method does, but write the FIN in the calling thread, unless TLS or compression is used.

    Raises AlreadyAnswered.
    """
    if message._claim("finish") >= EXPIRED:
        message._connection.answer_late(message, finished=True)
    else:
        message._connection.finish_now(message)


def unless_answered(answer: Callable[..., None], *args: Any) -> None:
    """Call *answer* with *args*, and ignore AlreadyAnswered."""
    try:
        answer(*args)
    except AlreadyAnswered:
        pass


def finish_all(messages: Iterable[Message]) -> None:
    """Send FIN for each unanswered message."""
    for message in finish_open(list(messages), True):
        unless_answered(message.finish)


def finish_all_new(messages: list[Message]) -> None:
    """Call :func:`finish_new` for each message."""
    for message in finish_open(messages, False):
        finish_new(message)


def read_columns(messages: list[Any]) -> tuple[str | None, bytes, bytes, bytes, bytes, bytes] | None:
    """Return the fields of messages as columns (:func:`gnsq_lite._core.columns`), or None if C cannot do that.

    The first item is the address of the nsqd, or None if the messages came on several connections.
    """
    found = columns(messages)
    return None if found is None else (None if found[0] is None else found[0].address, *found[1:])


def send_back(messages: Iterable[Message]) -> None:
    """Send REQ 0 for each unanswered message, without backoff."""
    for message in messages:
        unless_answered(message.requeue, 0.0, False)


know_message(Message, NEW, ASYNC)  # change Message.__init__ and _core/native.c together
