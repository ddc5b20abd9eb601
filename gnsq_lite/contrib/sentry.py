"""Reports to Sentry the errors of handlers and a transaction for each message.  Needs the extra ``sentry``.

::

    import sentry_sdk
    from gnsq_lite.contrib.sentry import SentryMiddleware

    sentry_sdk.init(dsn=...)
    worker = Worker(middleware=[SentryMiddleware()])
"""

from __future__ import annotations

from typing import Any

from gnsq_lite.errors import MissingExtra
from gnsq_lite.message import Requeue
from gnsq_lite.worker import Handler, Middleware

try:
    import sentry_sdk
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.sentry", "sentry", "sentry-sdk") from missing

__all__ = ["SentryMiddleware"]


class SentryMiddleware(Middleware):
    """Calls the handler in a new Sentry scope for each message, so that an error has only the tags of its message.

    Bodies are not sent, because they are user data.

    Args:
        first_attempt: Number of the first attempt whose error is reported.  ``Requeue`` is never reported.
    """

    def __init__(self, first_attempt: int = 1) -> None:
        self._from = first_attempt

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Wrap *call* to report its errors."""
        name = f"{handler.topic}/{handler.channel}"

        def watched(given: Any) -> Any:
            message = given[0] if isinstance(given, list) else given
            returned, requeue = None, None
            with sentry_sdk.isolation_scope() as scope, _transaction(name) as transaction:
                scope.set_tag("nsq.topic", handler.topic)
                scope.set_tag("nsq.channel", handler.channel)
                scope.set_context("nsq", _context(message, handler, given))
                transaction.set_data("messaging.system", "nsq")
                transaction.set_data("messaging.destination.name", handler.topic)
                transaction.set_data("messaging.message.id", message.id.decode("ascii", "replace"))
                transaction.set_data("messaging.message.retry.count", message.attempts - 1)
                try:
                    returned = call(given)
                    transaction.set_status("ok")
                except Requeue as error:  # raised below, because the transaction would report a failure
                    requeue = error
                    transaction.set_status("aborted")
                except BaseException as error:
                    if message.attempts >= self._from:
                        sentry_sdk.capture_exception(error)
                    raise
            if requeue is not None:
                raise requeue
            return returned

        return watched


def _transaction(name: str) -> Any:
    return sentry_sdk.start_transaction(op="queue.process", name=name, source="task", origin="auto.queue.nsq")


def _context(message: Any, handler: Handler, given: Any) -> dict[str, Any]:
    return {
        "id": message.id.decode("ascii", "replace"),
        "attempts": message.attempts,
        "nsqd": message.nsqd_address,
        "published": message.timestamp.isoformat(),
        "handler": handler.name,
        "messages": len(given) if isinstance(given, list) else 1,
    }
