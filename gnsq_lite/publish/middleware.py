"""Middleware: objects that run code before and after each publish of a Writer."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gnsq_lite.errors import NotSent
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.publish.publication import Publication
from gnsq_lite.wire.commands import check_bodies, check_body
from gnsq_lite.wire.names import check_topic

log = logging.getLogger("gnsq_lite.writer")


@dataclass(eq=False, slots=True)
class PublishCall:
    """One call of a Writer's publishing method.  ``before`` may change the topic, the bodies and the options."""

    method: Literal["publish", "publish_nowait", "multipublish"]
    topic: str
    #: The bodies of a ``multipublish``.  For the other methods, the list has one body.
    bodies: list[bytes]
    #: Keyword arguments of the call, such as ``defer``, ``timeout``, ``key`` and ``headers``.
    options: dict[str, Any]
    #: Values that a middleware passes from ``before`` to ``after``.  Use the middleware object as the key.
    kept: dict[Any, Any] = field(default_factory=dict)


#: Type of the functions that publish.  They return what the Writer's method returns, and raise the same errors.
Send: TypeAlias = Callable[[PublishCall], Any]


class PublishMiddleware:
    """Base class of a Writer's middleware.  Override the methods that you need.

    ``before`` and ``after`` run in the publishing thread or greenlet, so several calls may run at once.  The first
    middleware in the Writer's list is the outermost: its ``before`` runs first, and its ``after`` runs last.  If a
    topic or body is invalid, the publish raises an error and no middleware runs.
    """

    def before(self, call: PublishCall) -> None:
        """Run before the publish.  After an Exception here, the publish raises NotSent, and ``after`` does not run."""

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        """Run when the publish has its outcome.  *error* is None after nsqd's OK.

        The library logs an Exception of this method.  For ``publish_nowait`` this method usually runs in the I/O
        thread, and must not block or wait.
        """

    def wrap(self, send: Send) -> Send:
        """Return a function that the Writer calls instead of *send*.

        Override this method to decide when or whether to publish.  The Writer's method raises the exceptions of the
        returned function.
        """

        def wrapped(call: PublishCall) -> Any:
            try:
                self.before(call)
            except Exception as error:
                why = f"{type(self).__name__}.before() raised {type(error).__name__}: {error}"
                raise NotSent(f"the publish to {call.topic} was not sent: {why}") from error
            try:
                result = send(call)
            except BaseException as error:
                self._end(call, error)
                raise
            if isinstance(result, Publication):
                result.add_done_callback(lambda publication: self._end(call, publication._publish._error))
            else:
                self._end(call, None)
            return result

        return wrapped

    def _end(self, call: PublishCall, error: BaseException | None) -> None:
        try:
            self.after(call, error)
        except Exception as raised:
            log_safely(log, logging.ERROR, "%s.after() failed", type(self).__name__, exc_info=raised)


def wrap_method(middleware: Iterable[PublishMiddleware], method: Callable[..., Any], max_msg_size: int) -> Any:
    """Return a function that calls *method*, a Writer's publishing method, with *middleware* around the call."""
    name: Any = method.__name__
    is_batch, signature = name == "multipublish", inspect.signature(method)
    send: Send = lambda call: method(call.topic, call.bodies if is_batch else call.bodies[0], **call.options)  # noqa: E731
    for each in reversed(list(middleware)):
        send = each.wrap(send)

    @functools.wraps(method)
    def publish(topic: str, body: Any, **options: Any) -> Any:
        if options:
            signature.bind(topic, body, **options)  # raises TypeError for a keyword that does not exist
        check_topic(topic)
        if is_batch:
            bodies = check_bodies(body, max_msg_size)
        else:
            check_body(body, max_msg_size)
            bodies = [body]
        return send(PublishCall(name, topic, bodies, options))

    return publish
