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
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from gnsq_lite.consume.run_handler import BatchCalls, HandlerCalls, HandlerRaised
from gnsq_lite.errors import AlreadyAnswered, BodyTypeError, OptionError
from gnsq_lite.keywords import is_async
from gnsq_lite.message import GiveUp, Message, Requeue
from gnsq_lite.options import RetryOptions
from gnsq_lite.policy.attempts import Tries, requeue_delay
from gnsq_lite.wire.names import check_channel, check_topic
from gnsq_lite.worker.specs import Handler, Rules, registries

if TYPE_CHECKING:
    from gnsq_lite.arguments import InBatches, OneByOne, WithValue

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

    handled = finish_now = finish

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


def blocking(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return *handler*, or for an ``async def`` a function that runs it in a new event loop."""
    if not is_async(handler):
        return handler

    def run(job: Any) -> Any:
        import asyncio

        return asyncio.run(handler(job))

    return run


@dataclass(frozen=True)
class Outcome:
    """What a Worker does with a message after it has called the handler.

    Attributes:
        kind: "finish", "requeue", "give_up", or "open" after ``enable_async``.
        delay: Seconds until nsqd sends a requeued message again, before ``requeue_jitter`` shortens them; else None.
        reason: Why the message is requeued or given up, or "".
        error: The exception that the handler raised, also if it is a GiveUp or Requeue, or None.
    """

    kind: Literal["finish", "requeue", "give_up", "open"]
    delay: float | None = None
    reason: str = ""
    error: BaseException | None = None


class _TestDelivery:
    """Answers messages as a Worker does whose handler has *rules*.  Without *rules*, answers them as a Reader does."""

    def __init__(self, rules: Rules | None) -> None:
        self._rules, self._most = rules, 0 if rules is None else rules.failures.max_attempts
        #: The exception of the handler, and the GiveUp of each message that was given up, by id() of the message.
        self.error: BaseException | None = None
        self.given_up: dict[int, GiveUp] = {}

    def run(self, handler: Any, messages: list[RecordedMessage]) -> None:
        """Call *handler* with *messages*, or with the only message."""
        rules, most = self._rules, self._most
        try:
            if rules is not None and rules.is_batch:
                BatchCalls(blocking(rules.call), self, most).run(messages)
            else:
                HandlerCalls(blocking(handler if rules is None else rules.call), self, most).run(messages[0])
        except HandlerRaised as raised:
            raise raised.__cause__ or raised from None

    def on_exception(self, job: Any, error: BaseException) -> None:
        """Requeue or give up the unanswered messages of a handler that raised."""
        self.error = error
        for message in job if isinstance(job, list) else [job]:
            if message.has_responded:
                continue
            verdict = error if self._rules is None else self._rules.failures.judge(message, error)
            if isinstance(verdict, Requeue) and 0 < self._most < message.attempts:
                verdict = GiveUp(f"more than {self._most} attempts")
            if isinstance(verdict, GiveUp):
                self._give_up(message, verdict)
            else:
                asked = verdict if isinstance(verdict, Requeue) else Requeue()
                message.requeue(asked.delay, asked.backoff)

    def _give_up(self, message: Message, verdict: GiveUp) -> None:
        self.given_up[id(message)] = verdict
        message.finish()

    def skips(self, message: Message) -> bool:
        """Give up a message with so many attempts that a Worker does not call the handler any more."""
        if not Tries(self._most).gives_up(message.id, message.attempts):
            return False
        self._give_up(message, GiveUp(f"more than {self._most} attempts"))
        return True

    def outcome(self, message: RecordedMessage, retry: RetryOptions) -> Outcome:
        """Return the outcome of *message*."""
        error, gave_up = self.error, self.given_up.get(id(message))
        if gave_up is not None:
            return Outcome("give_up", None, gave_up.why, error)
        if not message.has_responded:
            return Outcome("open", None, "", error)
        kind, *rest = message.answers[-1]
        if kind == "finish":
            return Outcome("finish", None, "", error)
        asked: Any = rest[0]
        calm = replace(retry, requeue_jitter=0.0)
        delay = requeue_delay(calm, message.attempts, Random()) if asked is None else asked
        return Outcome("requeue", delay, "" if error is None else f"{type(error).__name__}: {error}", error)


def deliver(handler: OneByOne | InBatches | WithValue, message: RecordedMessage) -> Answer | None:
    """Call *handler* as a Reader does.  Return the answer that a Reader would send, or None after ``enable_async``.

    If *handler* is a function that ``@worker.handler`` has registered, and the Worker still exists, call it as the
    Worker does: with ``decode``, ``give_up_on``, ``retry_delay``, ``max_attempts`` and the middleware.  If the function
    handles several channels, the handler of the message's topic and channel counts, else the first one.

    If the handler has not answered, GiveUp means ("finish",), and any other exception ("requeue", delay, backoff).
    deliver() also raises exceptions of the handler that do not derive from Exception, such as SystemExit.  To deliver a
    message twice, as nsqd may do, make a second message with the same ``id`` and one more attempt.

    :meth:`gnsq_lite.Worker.deliver` also returns whether and why the message is given up, and raises unexpected errors.

    Raises:
        AlreadyAnswered: The message has already been answered.  *handler* was not called.
    """
    if message.has_responded:
        raise AlreadyAnswered(
            f"deliver: message {message.id!r} has already been answered; nsqd sends it again as a new message: "
            f"make_message(body, attempts={message.attempts + 1}, id=message.id)"
        )
    _TestDelivery(_rules_of(handler, message)).run(handler, [message])
    return message.answers[-1] if message.has_responded else None


def _rules_of(function: Any, message: Message) -> Rules | None:
    """Return the rules of the Worker whose handler *function* is, or None if it is no Worker's handler."""
    found = [(owner, each) for owner in registries.members() for each in owner.handlers if each.function == function]
    if not found:
        return None
    owner, handler = max(found, key=lambda each: (each[1].topic, each[1].channel) == (message.topic, message.channel))
    rules: Rules = owner.rules(handler)
    return rules


def deliver_for(owner: Any, handler: Handler, body: Any, attempts: int, id: bytes | None, raises: bool) -> Any:
    """Do the work of :meth:`gnsq_lite.Worker.deliver` for the Worker *owner*."""
    rules: Rules = owner.rules(handler)
    bodies = body if rules.is_batch else [body]
    if not isinstance(bodies, list):
        raise OptionError("body", body, "must be a list of bodies, because the handler has batch_size")
    messages = [make_message(each, attempts, topic=handler.topic, channel=handler.channel, id=id) for each in bodies]
    delivery = _TestDelivery(rules)
    delivery.run(rules.call, messages)
    if raises and delivery.error is not None and not rules.failures.names(delivery.error):
        raise delivery.error
    found = [delivery.outcome(each, rules.retry) for each in messages]
    return found if rules.is_batch else found[0]
