"""Publishing that follows the database's transactions."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from django.core.signals import setting_changed
from django.db import transaction

from gnsq_lite.contrib.django.conf import addresses, nsq_settings
from gnsq_lite.contrib.django.outbox import Outbox
from gnsq_lite.wire.commands import check_bodies, check_body
from gnsq_lite.wire.names import check_topic
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.django")

#: Bytes of one message that are refused before the commit; the Writer's own limit rules afterwards.
_DEFAULT_MAX = 1024 * 1024


class CommitWriter:
    """Publishes when the current transaction commits; at once where there is none; never when it rolls back.

    A bad topic or body raises at the call, while the transaction can still be rolled back.  Each publish of a
    transaction is tried, whatever became of those before it, and one that fails is logged with its topic.  The first
    error comes out of the commit after the last of them: the data is stored then, and the message is not, or its
    outcome is unknown.  Who must not lose it then takes :attr:`outbox`.
    """

    def __init__(self, writer: Writer, max_msg_size: int = _DEFAULT_MAX) -> None:
        #: The Writer itself, for what is not to wait for a commit.
        self.now = writer
        #: Stores messages with the transaction's rows; the worker publishes them.
        self.outbox = Outbox(writer, max_msg_size)
        self._max_msg_size = max_msg_size

    def publish(self, topic: str, body: bytes, *, using: str | None = None, **options: Any) -> None:
        """Publish after the commit; *using* names the database; *options* are those of ``Writer.publish``.

        Raises InvalidName, BodyTypeError, InvalidBody, MessageTooLarge at once, and TypeError for an option that there
        is not; PublishError at the commit.
        """
        check_topic(topic)
        check_body(body, self._max_msg_size)
        inspect.signature(self.now.publish).bind(topic, body, **options)
        _on_commit(functools.partial(self.now.publish, topic, body, **options), topic, using)

    def multipublish(self, topic: str, bodies: Iterable[bytes], *, using: str | None = None, **options: Any) -> None:
        """Publish a batch after the commit.  Raises as :meth:`publish`."""
        check_topic(topic)
        batch = list(check_bodies(bodies, self._max_msg_size))
        inspect.signature(self.now.multipublish).bind(topic, batch, **options)
        _on_commit(functools.partial(self.now.multipublish, topic, batch, **options), topic, using)


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


def _on_commit(call: Callable[[], object], topic: str, using: str | None) -> None:
    connection = transaction.get_connection(using)
    if connection.in_atomic_block:
        together = connection.__dict__.setdefault("_gnsq_lite_publishes", _Together())
        if not together.waiting:  # a callback of somebody else's, that raised, had ended the last commit
            together.error = None
        call = _Publish(call, topic, together)
    transaction.on_commit(call, using=using)


#: The process's writer, by the name of the setting it is made of.
_made: dict[str, CommitWriter] = {}


def writer() -> CommitWriter:
    """Return the process's writer, made of the setting ``NSQ``; shared by all threads, and safe in forked children."""
    found = _made.get("NSQ")
    if found is None:
        options = dict(nsq_settings().get("WRITER", {}))
        made = CommitWriter(Writer(**addresses(), **options), options.get("max_msg_size", _DEFAULT_MAX))
        # Of threads that come here at once the first wins, and a Writer that is not used has opened nothing.  A lock
        # could be held by another thread while this process forks; setdefault() cannot.
        found = _made.setdefault("NSQ", made)
    return found


def _forget(*, setting: str, **kwargs: Any) -> None:
    """A test has changed the setting: the next call makes a new Writer."""
    if setting == "NSQ" and (made := _made.pop("NSQ", None)) is not None:
        made.now.close()


setting_changed.connect(_forget)
