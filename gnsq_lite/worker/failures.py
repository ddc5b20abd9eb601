"""Decides by exception class whether a failed message is given up or requeued, and with which delay."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from gnsq_lite.errors import OptionError
from gnsq_lite.message import GiveUp, Message, Requeue, TimeLimitExceeded
from gnsq_lite.option_fields import check_number

if TYPE_CHECKING:
    from gnsq_lite.arguments import GiveUpOn, RetryDelay

log = logging.getLogger("gnsq_lite.worker")


class Failures:
    """Decides whether a failed message is given up or requeued, and chooses the delay.

    Args:
        max_attempts: Number of attempts after which a message is given up for any exception, or 0 for no limit.
        jitter: Largest random share by which a delay of *retry_delay* is shortened.
    Raises:
        OptionError
    """

    def __init__(
        self, give_up_on: GiveUpOn | None, retry_delay: RetryDelay | None, max_attempts: int, jitter: float = 0.0
    ) -> None:
        if isinstance(give_up_on, (type, str)):
            raise OptionError("give_up_on", give_up_on, "must be a tuple of exception classes, or a dict")
        if not isinstance(give_up_on, Mapping):
            give_up_on = dict.fromkeys(give_up_on or (), 1)
        delays = retry_delay if isinstance(retry_delay, Mapping) else {BaseException: retry_delay}
        for name, classes in (("give_up_on", give_up_on), ("retry_delay", delays)):
            for each in classes:
                if not (isinstance(each, type) and issubclass(each, BaseException)):
                    raise OptionError(name, each, "must be an exception class")
        for attempts in give_up_on.values():
            check_number("give_up_on", attempts, 1, 65535, whole=True)
        for delay in delays.values():
            if delay is not None and not callable(delay):
                check_number("retry_delay", delay, 0, 1_000_000)
        self._give_up_on, self._delays, self.max_attempts = give_up_on, delays, max_attempts
        self.jitter, self.rng = jitter, Random()
        self._is_delay_by_class = isinstance(retry_delay, Mapping)

    def judge(self, message: Message, error: BaseException) -> BaseException:
        """Return the GiveUp or Requeue that applies to *error*, or *error* itself for the default treatment."""
        if isinstance(error, (GiveUp, Requeue)) or not isinstance(error, (Exception, TimeLimitExceeded)):
            return error
        give_up = self.gives_up(message, error)
        if give_up is not None:
            return give_up
        delay = _by_class(self._delays, error)
        try:
            seconds = delay(error, message.attempts) if callable(delay) else delay
            if seconds is not None and self.jitter:
                seconds *= 1.0 - self.jitter * self.rng.random()
            return error if delay is None else Requeue(seconds)
        except Exception:  # raised by the user's function, or by Requeue for an invalid delay
            log.exception("retry_delay failed on %s; using the default delay", type(error).__name__)
            return error

    def gives_up(self, message: Message, error: BaseException) -> GiveUp | None:
        """Return the GiveUp that applies to *error*, or None.  Calls none of the user's functions."""
        if isinstance(error, GiveUp):
            return error
        if isinstance(error, Requeue) or not isinstance(error, (Exception, TimeLimitExceeded)):
            return None
        limit = _by_class(self._give_up_on, error)
        if limit is not None and message.attempts >= limit:
            return GiveUp(f"{type(error).__name__}: {error}")
        if 0 < self.max_attempts <= message.attempts:
            return GiveUp(f"the last of {self.max_attempts} attempts failed", backoff=True)
        return None

    def names(self, error: BaseException) -> bool:
        """Return whether *error* is a GiveUp or Requeue, or one of its classes is in a table of the handler."""
        tables = (self._give_up_on, self._delays if self._is_delay_by_class else {})
        return isinstance(error, (GiveUp, Requeue)) or any(_by_class(each, error) is not None for each in tables)


def _by_class(table: Mapping[type[BaseException], Any], error: BaseException) -> Any:
    """Return the value in *table* for the class of *error* or its nearest base class, or None."""
    return next((table[each] for each in type(error).__mro__ if each in table), None)
