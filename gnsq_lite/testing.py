"""Tests handlers without a broker: makes messages, and returns the answer that a Reader would send.

::

    from gnsq_lite.testing import deliver, make_message

    message = make_message(b"hello", attempts=2)
    assert deliver(handle, message) == ("finish",)

For tests with a broker, use :class:`gnsq_lite.broker.Broker` or the fixtures of :mod:`gnsq_lite.contrib.pytest_plugin`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from gnsq_lite.consume.run_handler import HandlerRaised, make_runner
from gnsq_lite.errors import AlreadyAnswered, BodyTypeError
from gnsq_lite.message import GiveUp, Message, Requeue
from gnsq_lite.wire.names import check_channel, check_topic

#: A recorded command: ("finish",), ("touch",) or ("requeue", delay, backoff).
Answer = tuple[str | float | bool | None, ...]

_ids = itertools.count(1)


class Recorder:
    """Fake connection.  It records the commands that a Reader would send for a message."""

    fins = None

    def __init__(self, topic: str, channel: str, address: str, msg_timeout: float, max_msg_timeout: float) -> None:
        self.topic, self.channel, self.address = topic, channel, address
        self.msg_timeout, self.max_msg_timeout = msg_timeout, max_msg_timeout
        self.read_at = time.monotonic()
        self.answers: list[Answer] = []

    def finish(self, message: Message) -> None:
        """Record FIN."""
        self.answers.append(("finish",))

    handled = finish

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Record REQ.  A delay of None means the Reader's delay for the message's number of attempts."""
        self.answers.append(("requeue", delay, backoff))

    def answer_late(self, message: Message, *, finished: bool) -> None:
        """Record an answer to a message that had already timed out at nsqd."""
        self.answers.append(("late", "finish" if finished else "requeue"))

    def flush(self) -> None:
        """Do nothing."""

    def touch(self, message: Message) -> None:
        """Record TOUCH."""
        self.answers.append(("touch",))

    def handler_returned_unanswered(self, message: Message) -> None:
        """Do nothing, because deliver() returns None for a message without an answer."""

    def skipped(self, message: Message) -> None:
        """Do nothing, because recorded messages do not expire."""


class RecordedMessage(Message):
    """A Message that records its answers."""

    __slots__ = ()

    @property
    def answers(self) -> list[Answer]:
        """Recorded commands, in order: ("touch",), ("finish",), ("requeue", delay, backoff)."""
        recorder: Any = self._connection
        answers: list[Answer] = recorder.answers
        return answers


def make_message(
    body: bytes = b"body",
    attempts: int = 1,
    *,
    topic: str = "topic",
    channel: str = "channel",
    id: bytes | None = None,
    timestamp_ns: int | None = None,
    nsqd_address: str = "127.0.0.1:4150",
    msg_timeout: float = 60.0,
    max_msg_timeout: float = 900.0,
) -> RecordedMessage:
    """Make a message without an nsqd.

    Args:
        id: 16 bytes.  None means a new unique id.
        timestamp_ns: Time of publishing, in nanoseconds since 1970.  None means now.
        msg_timeout, max_msg_timeout: Seconds from now to the deadline, and to the latest deadline after TOUCH.
    Raises:
        BodyTypeError, InvalidName: *body* is not bytes, or a name is invalid.
    """
    if not isinstance(body, bytes):
        raise BodyTypeError(type(body).__name__)
    check_topic(topic)
    check_channel(channel)
    recorder = Recorder(topic, channel, nsqd_address, msg_timeout, max_msg_timeout)
    stamp = time.time_ns() if timestamp_ns is None else timestamp_ns
    return RecordedMessage(recorder, stamp, attempts, b"%016x" % next(_ids) if id is None else id, body)


class _Outcomes:
    def on_exception(self, job: Any, error: BaseException) -> None:
        if not job.has_responded:
            asked = error if isinstance(error, Requeue) else Requeue()
            job.requeue(asked.delay, asked.backoff) if not isinstance(error, GiveUp) else job.finish()

    def gave_up(self, message: Message) -> bool:
        """Return False, because deliver() has no max_attempts."""
        return False


def deliver(handler: Callable[[Message], None], message: RecordedMessage) -> Answer | None:
    """Call *handler* as a Reader does.  Return the answer that a Reader would send, or None after ``enable_async``.

    If the handler has not answered, GiveUp means ("finish",), and any other exception ("requeue", delay, backoff).
    deliver() also raises exceptions of the handler that do not derive from Exception, such as SystemExit.  To deliver a
    message twice, as nsqd may do, make a second message with the same ``id`` and one more attempt.

    Raises:
        AlreadyAnswered: The message has already been answered.  *handler* was not called.
    """
    if message.has_responded:
        raise AlreadyAnswered(
            f"deliver: message {message.id!r} has already been answered; nsqd sends it again as a new message: "
            f"make_message(body, attempts={message.attempts + 1}, id=message.id)"
        )
    try:
        make_runner(handler, _Outcomes(), 0).run(message)
    except HandlerRaised as raised:
        raise raised.__cause__ or raised from None
    return message.answers[-1] if message.has_responded else None
