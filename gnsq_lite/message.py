"""The message that a handler receives.  A message is answered once, through its connection.

If its handler returns, the message is finished; if the handler raises, it is requeued (MSG-1).  A handler may also
answer: at once or, after :meth:`Message.enable_async`, later and from any thread or greenlet (MSG-2).  The library
never sends TOUCH by itself (MSG-3).

An answer deletes the message's token.  Deleting succeeds once, so there is one answer.  Only this file and the C part
(see :mod:`gnsq_lite._core`) delete tokens; all other code uses :func:`is_open`, :func:`is_expired`, :func:`finish_new`
and :func:`unless_answered`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, Protocol, cast

from gnsq_lite._core import columns, finish_open, keep_open, know_message
from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.option_fields import check_number

#: The token of an unanswered message: nothing has happened, the user answers later, nsqd's time-out has passed.
NEW: Final = 0
ASYNC: Final = 1
EXPIRED: Final = 2
#: Expired, and the user answers later.
LATE_ASYNC: Final = 3


class Requeue(Exception):
    """Raised by a handler to requeue its message.

    Args:
        delay: Seconds for which nsqd holds the message back; None: as after a failure, by the number of attempts.
        backoff: False: this is no failure, and the Reader does not slow down (BACK-5).
    Raises:
        OptionError: *delay* is negative or not finite.
    """

    def __init__(self, delay: float | None = None, backoff: bool = True) -> None:
        super().__init__(delay, backoff)
        self.delay, self.backoff = checked_delay(delay), backoff


class GiveUp(Exception):
    """Raise it in a handler to give the message up at once: ``on_give_up`` is called, and the message is finished.

    Args:
        why: The reason, for the log and the dead letter.
        backoff: True: the Reader slows down, as after any other failure.
    """

    def __init__(self, why: str = "", backoff: bool = False) -> None:
        super().__init__(why)
        self.why, self.backoff = why, backoff


class TimeLimitExceeded(BaseException):
    """Raised in a handler that exceeds ``time_limit``.  It is a BaseException: ``except Exception`` does not catch it.

    The message is requeued or given up, as after any failure.  ``seconds`` is the limit.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the handler exceeded its time limit of {self.seconds:g} s"


def checked_delay(delay: float | None) -> float | None:
    """Return *delay*.  Raises OptionError if it is negative, infinite or not a number (WIRE-8)."""
    return None if delay is None else check_number("delay", delay, 0, math.inf)


class Answers(Protocol):
    """What a message needs from its connection.  Each method may be called in any thread or greenlet."""

    #: Collects the FINs of handlers that succeeded; None: ``handled`` is called instead.
    fins: Any
    topic: str
    channel: str
    address: str
    #: Monotonic time of the read that brought the message; valid while the message is made.
    read_at: float
    #: Seconds from delivery until nsqd times the message out: without TOUCH, and at most with it.
    msg_timeout: float
    max_msg_timeout: float

    def finish(self, message: Message) -> None: ...

    def handled(self, message: Message) -> None:
        """Finish a message whose handler has returned; FIN may wait for the next messages of that thread."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def answer_late(self, message: Message, *, finished: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def left_open(self, message: Message) -> None:
        """Take that the handler of a message has returned, and answers later."""

    def skipped(self, message: Message) -> None:
        """Take that nsqd has taken a message back before its handler began."""


class _Truth(int):
    """True or False that can also be called: a method in gnsq and pynsq, a property here."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


_YES, _NO = cast("tuple[bool, bool]", (_Truth(True), _Truth(False)))


class Message:
    """One message from nsqd.

    Attributes:
        body: The published bytes.
        id: The message's id, 16 bytes.
        attempts: How often nsqd has sent the message, this time included; 1 to 65535.
        timestamp_ns: Time of publishing by nsqd's clock, in nanoseconds since 1970.
        partition, trace_id, internal_id, headers: Youzan's NSQ; None elsewhere.
    """

    # Deleting the slot "_token" succeeds once, in whatever thread: this is what makes one answer, without a lock.
    __slots__ = ("_connection", "_extended_to", "_received_at", "_token", "attempts", "body", "id", "timestamp_ns")

    partition: int | None = None
    internal_id: int | None = None
    trace_id: int | None = None
    headers: dict[str, object] | None = None

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
        """The body as nsqd sent it.  It differs from ``body`` if a client of Youzan's NSQ compressed the body."""
        return self.body

    @property
    def timestamp(self) -> datetime:
        """Time of publishing by nsqd's clock: UTC, to the microsecond."""
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
        """``time.monotonic()`` at which the message was received."""
        return self._received_at

    @property
    def deadline(self) -> float:
        """``time.monotonic()`` at which nsqd times the message out and sends it again (MSG-5, MSG-6)."""
        try:
            return self._extended_to
        except AttributeError:
            return self._received_at + self._connection.msg_timeout

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has passed without an answer; nsqd would refuse an answer now."""
        return not self.has_responded and time.monotonic() >= self.deadline

    @property
    def has_responded(self) -> bool:
        """Whether the message was finished or requeued.  ``has_responded()``, as in gnsq and pynsq, is the same."""
        return _NO if hasattr(self, "_token") else _YES

    @property
    def is_async(self) -> bool:
        """Whether :meth:`enable_async` was called and the message has no answer yet.  ``is_async()`` is the same."""
        return _YES if getattr(self, "_token", NEW) in (ASYNC, LATE_ASYNC) else _NO

    def finish(self) -> None:
        """Send FIN: nsqd forgets the message.  Raises AlreadyAnswered."""
        if self._claim("finish") >= EXPIRED:
            self._connection.answer_late(self, finished=True)
        else:
            self._connection.finish(self)

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        """Send REQ: nsqd sends the message again.

        Args:
            delay: Seconds for which nsqd holds the message back, at most its --max-req-timeout; None: by the number of
                attempts (requeue_delay).
            backoff: Whether this counts as a failure that slows the Reader down.
        Raises:
            AlreadyAnswered, OptionError: nothing was sent.
        """
        checked_delay(delay)
        if self._claim("requeue") >= EXPIRED:
            self._connection.answer_late(self, finished=False)
        else:
            self._connection.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Send TOUCH: nsqd waits msg_timeout from now, at most until max_msg_timeout after delivery.

        Raises AlreadyAnswered.
        """
        if self.has_responded:
            raise AlreadyAnswered(f"touch: message {self.id!r} has already been answered")
        connection = self._connection
        ceiling = self._received_at + connection.max_msg_timeout
        self._extended_to: float = min(time.monotonic() + connection.msg_timeout, ceiling)
        connection.touch(self)

    def enable_async(self) -> None:
        """Keep the message open when the handler returns; finish or requeue it later, from any thread or greenlet.

        Raises AlreadyAnswered.
        """
        self._token = LATE_ASYNC if self._claim("enable_async") >= EXPIRED else ASYNC

    def _expire(self) -> bool:
        """Mark it as timed out by nsqd; return False if it was answered meanwhile.  Called in the loop's thread."""
        try:
            self._token = LATE_ASYNC if self._claim("expire") in (ASYNC, LATE_ASYNC) else EXPIRED
        except AlreadyAnswered:
            return False
        return True

    def _claim(self, what: str) -> int:
        try:
            token = self._token
            del self._token
        except AttributeError:
            raise AlreadyAnswered(f"{what}: message {self.id!r} has already been answered") from None
        return token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} attempts={self.attempts} body={len(self.raw_body)} bytes>"


class Tailed(NamedTuple):
    """Makes messages of *type* from frames with *tail* bytes before the body: C fills the slots ``place`` and
    ``partition`` directly, and *make* does the same in Python, or refuses a frame without that many.
    """

    type: type[Message]
    tail: int
    partition: int
    make: Callable[[Any, int, int, bytes, bytes], Message]

    def __call__(self, owner: Any, timestamp_ns: int, attempts: int, id: bytes, rest: bytes) -> Message:
        return self.make(owner, timestamp_ns, attempts, id, rest)


def is_open(message: Message) -> bool:
    """Whether it is neither answered nor timed out."""
    return getattr(message, "_token", EXPIRED) < EXPIRED


def is_expired(message: Message) -> bool:
    """Whether it timed out, and was neither answered nor kept for a later answer."""
    return getattr(message, "_token", None) == EXPIRED


def claim(message: Message) -> bool:
    """Claim its answer, unless that was done; return whether it is still counted in flight."""
    try:
        return message._claim("claim") < EXPIRED
    except AlreadyAnswered:
        return True


def finish_new(message: Message) -> bool:
    """Finish it, after its handler has returned, unless the handler has answered.

    Return False if the user answers later, or the message has timed out.
    """
    try:
        if message._token != NEW:
            return False
        del message._token
    except AttributeError:
        return True  # it was answered
    connection = message._connection
    if connection.fins is None:
        connection.handled(message)
    else:
        connection.fins.add(message.id)
    return True


def unless_answered(answer: Callable[..., None], *args: Any) -> None:
    """Answer, unless it was answered meanwhile."""
    try:
        answer(*args)
    except AlreadyAnswered:
        pass


def finish_all(messages: Iterable[Message]) -> None:
    """Send FIN for those that are not answered."""
    for message in finish_open(list(messages), True):
        unless_answered(message.finish)


def finish_all_new(messages: list[Message]) -> None:
    """Do as :func:`finish_new` does, with each."""
    for message in finish_open(messages, False):
        finish_new(message)


def keep_all(messages: list[Message]) -> None:
    """Keep them open: they are answered later, from any thread or greenlet.  None of them is answered yet."""
    for message in keep_open(messages):
        message.enable_async()


def read_columns(messages: list[Any]) -> tuple[str | None, bytes, bytes, bytes, bytes, bytes] | None:
    """Return what the messages hold, column by column, as :func:`gnsq_lite._core.columns` does; None: it cannot.

    The first is the address of the one nsqd, None for messages of several.
    """
    found = columns(messages)
    return None if found is None else (None if found[0] is None else found[0].address, *found[1:])


def send_back(messages: Iterable[Message]) -> None:
    """Send REQ 0 for those that are not answered; no failure."""
    for message in messages:
        unless_answered(message.requeue, 0.0, False)


know_message(Message, NEW, ASYNC)  # a change of Message.__init__ needs the same change in _core/native.c
