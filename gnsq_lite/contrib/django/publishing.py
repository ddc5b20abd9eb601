"""Publishes messages after a database transaction commits."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, transaction

from gnsq_lite.contrib.django.conf import addresses, nsq_settings
from gnsq_lite.contrib.django.outbox import DjangoOutbox, max_msg_size
from gnsq_lite.errors import NotSent
from gnsq_lite.publish.middleware import PublishCall, PublishMiddleware, Send
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.django")


class OnCommit(PublishMiddleware):
    """Publish middleware that publishes after the current transaction's commit.  After a rollback it publishes nothing.

    Without a transaction, this function publishes at once.  An invalid topic or body raises an error at the call, so
    that the transaction can still be rolled back.  A call in a transaction returns None.  After the commit, the
    middleware tries each publish of the transaction, even if earlier publishes failed, and logs each failure with the
    topic.  Then the commit raises the first error.  The data is stored in this case, although the message may not be
    published.  Use :func:`outbox` to avoid this.  In a transaction, ``publish_nowait`` raises NotSent.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using

    def wrap(self, send: Send) -> Send:
        """Wrap *send* to wait for the commit."""

        def wrapped(call: PublishCall) -> Any:
            connection = transaction.get_connection(self._using)
            if not connection.in_atomic_block and connection.get_autocommit():
                return send(call)
            if call.method == "publish_nowait":
                raise NotSent("publish_nowait cannot wait for the commit of a transaction: use publish()")
            pending = connection.__dict__.setdefault("_gnsq_lite_publishes", _PendingPublishes())
            if not pending.waiting:  # left over if another on_commit callback raised in a commit
                pending.error = None
            publish = _Publish(functools.partial(send, call), call.topic, pending)
            transaction.on_commit(publish, using=self._using)
            return None

        return wrapped


class _PendingPublishes:
    """Publishes that wait for the commit of one database connection."""

    def __init__(self) -> None:
        #: Publishes to try.  Django and this weak set drop the publishes of a savepoint that is rolled back.
        self.waiting: weakref.WeakSet[_Publish] = weakref.WeakSet()
        self.error: Exception | None = None


class _Publish:
    """One publish of :class:`_PendingPublishes`.  The last publish raises the first error of all publishes."""

    def __init__(self, call: Callable[[], object], topic: str, pending: _PendingPublishes) -> None:
        self._call, self._topic, self._pending = call, topic, pending
        pending.waiting.add(self)

    def __call__(self) -> None:
        pending = self._pending
        pending.waiting.discard(self)
        try:
            self._call()
        except Exception as error:
            log.exception("a publish to %s after the commit failed", self._topic, extra={"topic": self._topic})
            pending.error = pending.error or error
        if pending.error is not None and not pending.waiting:
            first, pending.error = pending.error, None
            raise first


#: The process's Writers, by the database whose commit the Writer waits for, or None if the Writer does not wait.
_made: dict[str | None, Writer] = {}


def writer(using: str = DEFAULT_DB_ALIAS) -> Writer:
    """Return the process's Writer that publishes after the commit of the database *using* (:class:`OnCommit`).

    The Writer has the options in the setting ``NSQ``, is shared by all threads, and is safe in forked children.
    """
    return _writer(using)


def direct_writer() -> Writer:
    """Return the process's Writer that does not wait for a commit, with the options in the setting ``NSQ``."""
    return _writer(None)


def outbox() -> DjangoOutbox:
    """Return the outbox.  It stores messages in the transaction, and the worker publishes them after the commit."""
    return DjangoOutbox(max_msg_size())


def _writer(using: str | None) -> Writer:
    found = _made.get(using)
    if found is None:
        options = dict(nsq_settings().get("WRITER", {}))
        after_commit = [] if using is None else [OnCommit(using)]
        options["middleware"] = [*after_commit, *options.get("middleware", ())]
        made = Writer(**addresses(), **options)
        # If several threads make a Writer, the first Writer is kept.  An unused Writer has no connection.  There is no
        # lock, because another thread could hold the lock while this process forks.
        found = _made.setdefault(using, made)
    return found


def _forget(*, setting: str, **kwargs: Any) -> None:
    """Close the Writers when a test changes the setting ``NSQ``.  The next call makes a new Writer."""
    while setting == "NSQ" and _made:
        _made.popitem()[1].close()


setting_changed.connect(_forget)
