"""Calls the handler with each message, and then finishes, requeues or gives up the message.

This code runs in the handler's thread or greenlet (MSG-1, MSG-2, MSG-4).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from datetime import datetime
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Protocol

from gnsq_lite import stacks
from gnsq_lite._core import Runner, all_new
from gnsq_lite.clock import Clock
from gnsq_lite.consume.rows import Rows, parts_of, split_all
from gnsq_lite.consume.settings import ConsumerSettings, message_fields
from gnsq_lite.errors import OptionError
from gnsq_lite.message import (
    GiveUp,
    Message,
    Requeue,
    TimeLimitExceeded,
    finish_all_new,
    finish_new,
    is_expired,
    is_open,
    unless_answered,
)
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import Count
from gnsq_lite.net.user_hooks import UserHooks, log_safely
from gnsq_lite.policy.attempts import Tries

log = logging.getLogger("gnsq_lite.reader")

#: The argument *max_attempts* of a runner that calls :meth:`Failures.skips` with each message.
ASK_ALWAYS = -1


class HandlerRaised(BaseException):
    """The handler or on_give_up raised ``__cause__``, which is not an Exception.  The message is already answered."""


class Failures(Protocol):
    """Answers messages whose handler raised or must not be called.  The methods may block."""

    def on_exception(self, job: Any, error: BaseException) -> None:
        """Requeue or give up the messages of a handler that raised."""

    def skips(self, message: Message) -> bool:
        """Answer a message that is early or has more than max_attempts, or return False: call the handler."""


RETURNED_FALSE = "the handler returned False, but its message is finished anyway: raise Requeue() to requeue it"


def refuse_unrun(returned: object, by: str = "the handler") -> None:
    """Raise TypeError if *returned* is a coroutine or a generator, because its code never runs.

    If a handler returned False, which means failure in pynsq, warn.
    """
    if returned is False and by == "the handler":
        warnings.warn(RETURNED_FALSE, RuntimeWarning, stacklevel=2)
    if isinstance(returned, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if not isinstance(returned, AsyncGeneratorType):
            returned.close()
        raise TypeError(f"{by} returned a {type(returned).__name__}, which is never run")


class HandlerCalls:
    """What happens before and after each call of *handler* with a message (MSG-1, MSG-2, MSG-4).

    The message fails if the handler raises.  If the error is not an Exception, but for example KeyboardInterrupt,
    SystemExit, GreenletExit or gevent.Timeout, the methods also raise HandlerRaised.
    """

    def __init__(self, handler: Callable[[Any], Any], failures: Failures, max_attempts: int) -> None:
        self.handler, self._failures, self._most = handler, failures, max_attempts or 65536

    def runner(self) -> Runner:
        """Return the Runner for ``drain()``."""
        return Runner(self.handler, self._most, self.run, self.raise_and_fail, self.returned)

    def run(self, message: Message) -> None:
        """Call the handler and answer the message."""
        if self.begin(message) is None:
            return
        try:
            value = self.handler(message)
        except BaseException as error:
            self.failed(message, error)
            return
        self.returned(message, value)

    def may_give_up(self, message: Message) -> bool:
        """Return whether :meth:`begin` may call not_before or give up the message, which may block."""
        return message.attempts > self._most

    def begin(self, message: Message) -> Message | None:
        """Return the message if the handler must be called with it."""
        if not is_open(message):  # it timed out in the queue, or the Reader has requeued it
            if is_expired(message):
                message._connection.skipped(message)
            return None
        try:
            if message.attempts > self._most and self._failures.skips(message):
                return None
        except HandlerRaised:
            raise
        except BaseException as error:
            self.failed(message, error)
            return None
        return message

    def failed(self, job: Any, error: BaseException) -> None:
        """Requeue or give up a message, or the messages of a list, whose handler raised."""
        self._failures.on_exception(job, error)
        if not isinstance(error, Exception):
            raise HandlerRaised from error

    def raise_and_fail(self, message: Message, error: BaseException) -> None:
        """Do the same for C, with *error* in sys.exc_info(), as hooks and logging expect it."""
        try:
            raise error
        except BaseException:
            self.failed(message, error)

    def returned(self, message: Message, value: object) -> None:
        """Finish a message whose handler returned."""
        if value is not None:
            try:
                refuse_unrun(value)
            except Exception as error:
                self._failures.on_exception(message, error)
                return
        if finish_new(message):
            return
        if is_expired(message):
            unless_answered(message.finish)  # nsqd accepts this FIN only if nsqd has sent the message here again
        elif not message.has_responded:
            message._connection.handler_returned_unanswered(message)


class BatchCalls(HandlerCalls):
    """The same for lists of messages: finishes or fails the unanswered messages of a list."""

    def runner(self) -> Runner:
        """Return the Runner for ``drain()``, which calls :meth:`run` only, because a list is no message."""
        return Runner(self.handler, self._most, self.run, lambda batch, error: None, lambda batch, value: None)

    def run(self, batch: Any) -> None:
        """Call the handler and answer the messages."""
        live = self.begin(batch)
        if live is None:
            return
        try:
            value = self.handler(live)
            if value is not None:
                refuse_unrun(value)
        except BaseException as error:
            self.failed(live, error)
            return
        self.finish(live)

    def finish(self, batch: list[Message]) -> None:
        """Finish the unanswered messages of a list."""
        finish_all_new(batch)

    def may_give_up(self, batch: Any) -> bool:
        """Return whether :meth:`begin` may call not_before or give up a message of the list."""
        return any(message.attempts > self._most for message in batch)

    def begin(self, batch: Any) -> Any:
        """Return a list of the messages with which the handler must be called, or None if there are none."""
        return (batch.copy() if all_new(batch, self._most) else self._answerable(batch)) or None

    def _answerable(self, batch: list[Message]) -> list[Message]:
        live = []
        for message in batch:
            if not is_open(message):
                if is_expired(message):
                    message._connection.skipped(message)
                continue
            try:
                if message.attempts <= self._most or not self._failures.skips(message):
                    live.append(message)
            except HandlerRaised as raised:  # on_give_up raised: the worker ends, so requeue the other messages
                cause: Any = raised.__cause__
                self._failures.on_exception([each for each in batch if not each.has_responded], cause)
                raise
        return live

    def returned(self, batch: Any, value: object) -> None:
        """Finish the unanswered messages of a list whose handler returned."""
        if value is not None:
            try:
                refuse_unrun(value)
            except Exception as error:
                self._failures.on_exception(batch, error)
                return
        self.finish(batch)


class RowsCalls(BatchCalls):
    """The same for lists of Rows.  Only Rows with a message over max_attempts, or that fail, are split."""

    def begin(self, batch: Any) -> Any:
        """Return a list of the messages and Rows with which the handler must be called, or None."""
        return super().begin(split_all(parts_of(batch), above=self._most))

    def finish(self, batch: list[Message]) -> None:
        """Finish the unanswered messages."""
        super().finish(batch)
        super().finish(parts_of(message for message in batch if isinstance(message, Rows) and message.is_split))


def key_of(message: Message) -> tuple[str, bytes]:
    """Return a unique key of a message.  The id is not unique: two nsqds may use the same id."""
    return message.nsqd_address, message.id


def _seconds(value: object) -> float | None:
    """Return the result of ``not_before`` as seconds since 1970.  Raises TypeError."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp()
    if value is None or (isinstance(value, (int, float)) and math.isfinite(value)):
        return value
    raise TypeError(f"not_before returned {value!r}: it must return an aware datetime, seconds since 1970, or None")


def _masked(messages: list[Message], asked: Requeue) -> tuple[list[Message], BaseException]:
    """Finish the messages that *asked* does not name.  Return the others, or all with an OptionError."""
    mask = asked.rows or []
    if len(mask) != len(messages) or not all(each == bool(each) for each in mask):
        return messages, OptionError("rows", mask[:8], f"must have a bool for each of the {len(messages)} rows")
    finish_all_new([message for message, is_asked in zip(messages, mask, strict=True) if not is_asked])
    return [message for message, is_asked in zip(messages, mask, strict=True) if is_asked], asked


class HandlerOutcomes:
    """Requeues messages or gives them up, logs failures, and calls the hooks.

    Args:
        on_exit: Called in the loop with a SystemExit or KeyboardInterrupt of a handler.
    """

    def __init__(
        self,
        loop: Loop,
        settings: ConsumerSettings,
        tries: Tries,
        hooks: UserHooks,
        clock: Clock,
        *,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self._loop, self._settings, self._tries, self._hooks = loop, settings, tries, hooks
        self._clock, self._on_exit = clock, on_exit
        #: The give-ups that run now, by id() of the message.  After a time limit, two threads may give up one message.
        self._giving_up: dict[int, object] = {}
        self.failures, self.given_up = Count(), Count()

    def on_exception(self, job: Any, error: BaseException) -> None:
        """Requeue or give up the unanswered messages of a handler that raised.  Report all errors except Requeue."""
        messages: list[Any] = split_all(job if isinstance(job, list) else (job,))
        if isinstance(error, Requeue) and error.rows is not None:
            messages, error = _masked(messages, error)
        counts = isinstance(error, (Exception, TimeLimitExceeded))
        for message in messages:
            verdict = self._settings.judge(message, error)
            delay = verdict.delay if isinstance(verdict, Requeue) else None
            backoff = verdict.backoff if isinstance(verdict, (GiveUp, Requeue)) else True
            is_over = isinstance(verdict, GiveUp) or (counts and self._tries.is_over(message.attempts))
            if is_over and is_open(message):
                if backoff:
                    message._connection.slow_down()
                if self._give_up_once(message) or not isinstance(error, TimeLimitExceeded):
                    continue  # if the time limit interrupts on_give_up, the next delivery calls it again
            unless_answered(message.requeue, delay, backoff)
        if not isinstance(error, Requeue):
            for message in messages:
                self._report(message, error)

    def _report(self, message: Message, error: BaseException) -> None:
        self.failures.add()
        said, named = "handler failed on %r (attempt %d): %s", (message.id, message.attempts, stacks.text_of(error))
        is_planned = isinstance(error, GiveUp)  # on_give_up logs its reason
        level, shown = (logging.DEBUG, None) if is_planned else (logging.WARNING, stacks.exc_info_of(error))
        log_safely(log, level, said, *named, exc_info=shown, extra=message_fields(message))
        self._hooks.call("on_failure", message, error)

    def skips(self, message: Message) -> bool:
        """Requeue a message that is early.  Give up a message if Tries says so (MSG-4).  Otherwise return False.

        A message is also given up if a handler has begun an unanswered earlier delivery.
        """
        if self._settings.not_before is not None:
            counted, message.attempts = message.attempts, self._tries.remembered(key_of(message))
            try:
                when = _seconds(self._settings.not_before(message))
            except (Exception, TimeLimitExceeded) as error:
                message.attempts += 1
                self.on_exception(message, error)
                return True
            if not is_open(message):  # not_before has answered it
                return True
            if when is not None:
                return self._skips_timed(message, when - self._clock.wall())
            message.attempts = counted
        connection: Any = message._connection
        over = self._tries.gives_up(key_of(message), message.attempts, *self._settings.known_of(message))
        if not over and not connection.has_other_delivery(message):
            return False
        self._give_up_once(message)
        return True

    def _skips_timed(self, message: Message, rest: float) -> bool:
        """Do the same for a message with a time *rest* seconds from now.

        nsqd counts early deliveries as attempts.  So ``attempts`` is set to the number of deliveries after the time,
        as far as this process remembers them.
        """
        remembered = self._tries.remembered(key_of(message))
        if rest > 0:
            message.attempts = remembered  # requeue() then records no further attempt
            unless_answered(message.requeue, rest, False)
            return True
        message.attempts = remembered + 1
        if not self._tries.gives_up_timed(remembered, self._settings.known_of(message)[0]):
            return False
        self._give_up_once(message)
        return True

    def _give_up_once(self, message: Message) -> bool:
        """Give up the message.  If another thread or greenlet does this already, return False."""
        mine = object()
        if self._giving_up.setdefault(id(message), mine) is not mine:
            return False
        try:
            self._give_up(message)
        finally:
            del self._giving_up[id(message)]
        return True

    def _give_up(self, message: Message) -> None:
        """Call on_give_up.  Send FIN if on_give_up returns, and REQ if it raises (MSG-4)."""
        try:
            refuse_unrun(self._settings.on_give_up(message), "on_give_up")
        except (Exception, TimeLimitExceeded) as error:
            unless_answered(message.requeue)
            log_safely(log, logging.ERROR, "on_give_up failed; message %r is requeued", message.id, exc_info=error)
            self._hooks.call("on_failure", message, error)
        except BaseException as error:
            unless_answered(message.requeue)
            raise HandlerRaised from error
        else:
            self.given_up.add(not message.has_responded)
            unless_answered(message.finish)

    def on_exit(self, error: BaseException) -> None:
        """End the Reader if *error* is KeyboardInterrupt or SystemExit.  Otherwise log *error*."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._loop.call_soon(lambda: self._on_exit(error))
        elif not isinstance(error, TimeLimitExceeded):  # on_exception() has logged TimeLimitExceeded
            said = "a handler raised %s; its message was requeued"
            log_safely(log, logging.ERROR, said, type(error).__name__, exc_info=error)
