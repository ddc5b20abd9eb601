"""Publishing that follows the database's transactions."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, transaction

from gnsq_lite.contrib.django.conf import addresses, nsq_settings
from gnsq_lite.contrib.django.outbox import Outbox
from gnsq_lite.errors import NotSent
from gnsq_lite.publish.middleware import PublishCall, PublishMiddleware, Send
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.django")


class OnCommit(PublishMiddleware):
    """Publishes when the current transaction of a database commits; at once without one; never when it rolls back.

    A bad topic or body raises at the call, while the transaction can still be rolled back.  A publish that waits for
    the commit returns None.  Each publish of a transaction is tried, whatever became of those before it, and one that
    fails is logged with its topic.  The first error comes out of the commit after the last of them: the data is stored
    then, and the message is not, or its outcome is unknown.  If that must not happen, use :func:`outbox`.  In a
    transaction, ``publish_nowait`` raises NotSent: it has no outcome to return.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using

    def wrap(self, send: Send) -> Send:
        """Return *send*, which waits for the commit."""

        def wrapped(call: PublishCall) -> Any:
            connection = transaction.get_connection(self._using)
            if not connection.in_atomic_block and connection.get_autocommit():
                return send(call)
            if call.method == "publish_nowait":
                raise NotSent("publish_nowait cannot wait for the commit of a transaction: use publish()")
            together = connection.__dict__.setdefault("_gnsq_lite_publishes", _Together())
            if not together.waiting:  # a callback of somebody else's, that raised, had ended the last commit
                together.error = None
            publish = _Publish(functools.partial(send, call), call.topic, together)
            transaction.on_commit(publish, using=self._using)
            return None

        return wrapped


class _Together:
    """The publishes that wait for one database connection's commit."""

    def __init__(self) -> None:
        #: Those to come.  What a savepoint has rolled back Django forgets, and so it is gone from here.
        self.waiting: weakref.WeakSet[_Publish] = weakref.WeakSet()
        self.error: Exception | None = None


class _Publish:
    """One of them; raises nothing until it is the last."""

    def __init__(self, call: Callable[[], object], topic: str, together: _Together) -> None:
        self._call, self._topic, self._together = call, topic, together
        together.waiting.add(self)

    def __call__(self) -> None:
        together = self._together
        together.waiting.discard(self)
        try:
            self._call()
        except Exception as error:
            log.exception("a publish to %s after the commit failed", self._topic, extra={"topic": self._topic})
            together.error = together.error or error
        if together.error is not None and not together.waiting:
            first, together.error = together.error, None
            raise first


#: The process's Writers, by the name of the database whose commit they wait for.
_made: dict[str | None, Writer] = {}


def writer(using: str = DEFAULT_DB_ALIAS) -> Writer:
    """Return the process's Writer that publishes after the commit of the database *using* (:class:`OnCommit`).

    It is made of the setting ``NSQ``, shared by all threads, and safe in forked children.
    """
    return _writer(using)


def direct_writer() -> Writer:
    """Return the process's Writer that does not wait for a commit; made of the setting ``NSQ``."""
    return _writer(None)


def outbox() -> Outbox:
    """Return what stores messages with the transaction's rows; the worker publishes them."""
    return Outbox(nsq_settings().get("WRITER", {}).get("max_msg_size", 1024 * 1024))


def _writer(using: str | None) -> Writer:
    found = _made.get(using)
    if found is None:
        options = dict(nsq_settings().get("WRITER", {}))
        after_commit = [] if using is None else [OnCommit(using)]
        options["middleware"] = [*after_commit, *options.get("middleware", ())]
        made = Writer(**addresses(), **options)
        # Of threads that come here at once the first wins, and a Writer that is not used has opened nothing.  A lock
        # could be held by another thread while this process forks; setdefault() cannot.
        found = _made.setdefault(using, made)
    return found


def _forget(*, setting: str, **kwargs: Any) -> None:
    """Close the Writers when a test changes the setting: the next call makes a new one."""
    while setting == "NSQ" and _made:
        _made.popitem()[1].close()


setting_changed.connect(_forget)
