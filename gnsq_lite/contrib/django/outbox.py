"""The outbox: a message is a row of the transaction that it speaks of; the relay publishes it after the commit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from gnsq_lite.contrib.django.conf import nsq_settings
from gnsq_lite.errors import (
    ClosedError,
    NSQConnectionError,
    NSQError,
    OptionError,
    PartitionUnavailable,
    PublishError,
)
from gnsq_lite.wire.commands import check_body
from gnsq_lite.wire.names import check_topic
from gnsq_lite.writer import Writer

log = logging.getLogger("gnsq_lite.django")

#: Messages of one turn of the relay.
BATCH = 100
#: Seconds until a message that nsqd has refused is tried again: this, twice this, ... up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
#: Waiting mends these, and they concern every message: nsqd is not there, or nobody knows what it did.
_PASSING = (PublishError, NSQConnectionError, ClosedError)


def outbox_databases() -> Sequence[str]:
    """Return the aliases whose outboxes are relayed.  Raises ImproperlyConfigured for one that there is not."""
    found = nsq_settings().get("OUTBOX", ())
    if isinstance(found, str) or any(alias not in connections for alias in found):
        raise ImproperlyConfigured(f"NSQ['OUTBOX'] must be a list of names of DATABASES, not {found!r}")
    return tuple(found)


class Outbox:
    """Stores messages; what is stored in a transaction that rolls back never was."""

    def __init__(self, writer: Writer, max_msg_size: int) -> None:
        self._writer, self._max_msg_size = writer, max_msg_size

    def publish(self, topic: str, body: bytes, *, key: str = "", using: str | None = None, **options: Any) -> None:
        """Store a message, which the relay of the database *using* publishes at least once, after the commit.

        Args:
            key: Messages of one topic and key are published in the order in which they were stored; it chooses the
                partition too, where nsqd is Youzan's.
            options: Those of ``Writer.publish``, as far as JSON can hold them.
        Raises:
            InvalidName, BodyTypeError, InvalidBody, MessageTooLarge, TypeError: nothing is stored.
            ImproperlyConfigured: nobody relays this database, as ``NSQ["OUTBOX"]`` does not name it.
        """
        self.publish_many(topic, [body], key=key, using=using, **options)

    def publish_many(
        self, topic: str, bodies: Iterable[bytes], *, key: str = "", using: str | None = None, **options: Any
    ) -> None:
        """Store several, in their order.  Raises as :meth:`publish`; then none of them is stored."""
        from gnsq_lite.contrib.django.models import OutboxMessage

        alias = DEFAULT_DB_ALIAS if using is None else using
        if alias not in outbox_databases():
            raise ImproperlyConfigured(f"NSQ['OUTBOX'] does not name {alias!r}, so nobody would relay its messages")
        check_topic(topic)
        if len(key) > 255:
            raise OptionError("key", key, "has more than 255 characters")
        rows = []
        for body in bodies:
            check_body(body, self._max_msg_size)
            inspect.signature(self._writer.publish).bind(topic, body, **options)
            rows.append(OutboxMessage(topic=topic, body=bytes(body), key=key, options=options))
        OutboxMessage.objects.using(alias).bulk_create(rows)


class Relay:
    """Publishes the outbox of one database, whichever process's turn it is."""

    def __init__(self, alias: str, writer: Writer, batch: int = BATCH) -> None:
        self._alias, self._writer, self._batch = alias, writer, batch
        #: Whether this Writer's nsqd knows keys.
        self._takes_keys = True

    def turn(self) -> bool:
        """Publish what is stored, a batch of it at the most; return whether there may be more right now.

        A lock on one row keeps all others from it until the published rows are deleted and that is committed.  Where
        this process ends in between, the database lets go of the lock, and the next one publishes them again.

        Raises:
            django.db.Error: the database.
            NSQError: nsqd cannot be reached; what was published before is deleted.
        """
        from gnsq_lite.contrib.django.models import OutboxMessage

        if not OutboxMessage.objects.using(self._alias).exists():
            return False  # and nobody is locked out for nothing
        with transaction.atomic(using=self._alias):
            if not self._may():
                return False
            rows = list(self._due())
            done: list[int] = []
            problem = self._publish(rows, done)
            OutboxMessage.objects.using(self._alias).filter(pk__in=done).delete()
        if problem is not None:
            raise problem
        return len(rows) == self._batch

    def _may(self) -> bool:
        """Take the lock; False where another has it."""
        from gnsq_lite.contrib.django.models import OutboxRelay

        stored, features = OutboxRelay.objects.using(self._alias), connections[self._alias].features
        relay = stored.filter(pk=1)
        if features.has_select_for_update_skip_locked:
            locked = bool(list(relay.select_for_update(skip_locked=True)))
        else:  # SQLite, where the first to write locks out all others
            locked = bool(relay.update(turns=F("turns") + 1))
        if not locked and not relay.exists():  # somebody has emptied the table: for the next turn
            stored.bulk_create([OutboxRelay(pk=1)], ignore_conflicts=True)
        return locked

    def _due(self) -> Any:
        from gnsq_lite.contrib.django.models import OutboxMessage

        now = timezone.now()
        stored = OutboxMessage.objects.using(self._alias)
        held_up = stored.filter(topic=OuterRef("topic"), key=OuterRef("key"), retry_at__gt=now).exclude(key="")
        due = stored.filter(Q(retry_at=None) | Q(retry_at__lte=now)).filter(~Exists(held_up))
        return due.order_by("pk")[: self._batch]

    def _publish(self, rows: Sequence[Any], done: list[int]) -> NSQError | None:
        """Publish *rows*, and note in *done* what was; return why no more can be published now."""
        by_topic: dict[str, list[Any]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        problem: NSQError | None = None
        for topic, some in by_topic.items():
            try:
                if not self._all_at_once(topic, some, done):
                    self._one_by_one(some, done)
            except PartitionUnavailable as error:  # which is that topic's alone
                problem = error
            except _PASSING as error:
                return error
        return problem

    def _all_at_once(self, topic: str, rows: Sequence[Any], done: list[int]) -> bool:
        """Publish *rows* as a batch, where that can be done and nsqd takes it."""
        if len(rows) < 2 or any(row.options or (row.key and self._takes_keys) for row in rows):
            return False
        try:
            self._writer.multipublish(topic, [bytes(row.body) for row in rows])
        except _PASSING:
            raise
        except NSQError:
            return False  # one by one it will show which
        done += [row.pk for row in rows]
        return True

    def _one_by_one(self, rows: Sequence[Any], done: list[int]) -> None:
        stopped: set[str] = set()
        for row in rows:
            if row.key and row.key in stopped:
                continue
            try:
                self._publish_one(row)
            except _PASSING:
                raise
            except (NSQError, TypeError, ValueError) as error:
                stopped.add(row.key)
                self._refused(row, error)
            else:
                done.append(row.pk)

    def _publish_one(self, row: Any) -> None:
        if row.key and self._takes_keys and "key" not in row.options:
            try:
                self._writer.publish(row.topic, bytes(row.body), key=row.key, **row.options)
                return
            except OptionError as error:
                if error.name != "key":
                    raise
                self._takes_keys = False  # plain NSQ, which has no partitions to choose from
        self._writer.publish(row.topic, bytes(row.body), **row.options)

    def _refused(self, row: Any, error: Exception) -> None:
        """Let it rest, and those of its key behind it; nothing but a person gives it up."""
        pause = min(_FIRST_PAUSE * 2.0 ** min(row.failures, 16), _LONGEST_PAUSE)
        row.failures += 1
        row.error, row.retry_at = f"{type(error).__name__}: {error}"[:1000], _in(pause)
        row.save(using=self._alias, update_fields=["failures", "error", "retry_at"])
        said = "message %d of the outbox of %r cannot be published to %s; it is tried again in %g s: %s"
        log.error(said, row.pk, self._alias, row.topic, pause, row.error, extra={"topic": row.topic})


def _in(seconds: float) -> datetime:
    when: datetime = timezone.now() + timedelta(seconds=seconds)
    return when
