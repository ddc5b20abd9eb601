"""Code around each message: timing, database connections, tracing, error reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gnsq_lite.net.handlers import refuse_unrun

if TYPE_CHECKING:
    from gnsq_lite.worker.app import Worker
    from gnsq_lite.worker.specs import Handler

log = logging.getLogger("gnsq_lite.worker")

Call = Callable[[Any], Any]


class Middleware:
    """Base class: override the hooks you need; those you leave cost nothing.

    *message* is what the handler gets: a :class:`~gnsq_lite.Message`, or a list of them where it has a *batch_size*.
    The hooks run where the handler runs, and several at once where handlers do.  Middleware given first is outermost:
    its ``before`` runs first and its ``after`` or ``failed`` last.
    """

    def before(self, message: Any) -> None:
        """Runs before the handler.  What it raises is the message's failure; the handler is not called."""

    def after(self, message: Any) -> None:
        """Runs when the handler has returned.  What it raises is the message's failure."""

    def failed(self, message: Any, error: BaseException) -> None:
        """Runs when the handler, or middleware further in, raised; ``Requeue`` too.  *error* is raised on after it."""

    def started(self, worker: Worker) -> None:
        """Runs once, before the first message, in each process."""

    def stopped(self, worker: Worker) -> None:
        """Runs once, after the last message, in each process."""

    def wrap(self, call: Call, handler: Handler) -> Call:
        """Return what is called in place of *call*; override it to keep something from before to after."""
        before, after, failed = (self._overridden(name) for name in ("before", "after", "failed"))
        if before is after is failed is None:
            return call

        def wrapped(message: Any) -> None:
            if before is not None:
                before(message)
            try:
                returned = call(message)
                if returned is not None:
                    refuse_unrun(returned)
            except BaseException as error:
                if failed is not None:
                    _tell(failed, message, error)
                raise
            if after is not None:
                after(message)

        return wrapped

    def _overridden(self, name: str) -> Callable[..., Any] | None:
        return None if getattr(type(self), name) is getattr(Middleware, name) else getattr(self, name)


def _tell(failed: Callable[..., Any], message: Any, error: BaseException) -> None:
    try:
        failed(message, error)
    except Exception:
        log.exception("middleware failed while it was told of a failure")


def wrapped(handler: Handler, middleware: Iterable[Middleware]) -> Call:
    """Return the handler's function within all *middleware*, the first one outermost."""
    call = handler.function
    for each in reversed(list(middleware)):
        call = each.wrap(call, handler)
    return call
