"""``@once`` runs a handler once per key, and stores the key in the same transaction."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connections, router, transaction
from django.utils import timezone

from gnsq_lite.contrib.inbox import CLEAN_EVERY, HANDLED_BEFORE, RETENTION, checked_key, consumer_of
from gnsq_lite.keywords import check_runs

log = logging.getLogger("gnsq_lite.django")

#: Number of duplicates that were finished without calling the handler, by topic/channel.
duplicates: Counter[str] = Counter()
_handled: Counter[str] = Counter()


def once(
    key: Callable[..., object], *, using: str | None = None, retention: float = RETENTION
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that runs a handler in ``transaction.atomic()``, once per key.

    The message is finished after the commit.  A duplicate is counted and finished without calling the handler.

    Args:
        key: Function of the handler's arguments that returns the message's key.  All deliveries and all publishes of a
            message must have the same key.
        using: Name of the database that the handler changes.
        retention: Seconds for which keys are kept.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        check_runs("handler", function)  # a transaction belongs to one thread, and cannot wait for an event loop

        @functools.wraps(function)
        def handle(*given: Any) -> None:
            consumer, name = consumer_of(given[-1]), checked_key(key(*given))
            with transaction.atomic(using=using):
                if _is_first(consumer, name, using, retention):
                    function(*given)
                    return
            duplicates[consumer] += 1
            log.info(HANDLED_BEFORE, name, consumer)

        vars(handle)["nsq_inbox"] = using  # nsq_worker checks that the table is there
        vars(handle)["nsq_takes_one"] = True  # Reader refuses batch_size
        return handle

    return decorate


def _is_first(consumer: str, name: str, using: str | None, retention: float) -> bool:
    """Insert the row of the key, and return whether the key is new.

    If another transaction is inserting the same key, the statement waits until that transaction ends.
    """
    from gnsq_lite.contrib.django.models import InboxMessage

    alias = using or router.db_for_write(InboxMessage)
    connection = connections[alias]
    table, columns = connection.ops.quote_name(InboxMessage._meta.db_table), "(consumer, message, handled_at)"
    ignore, conflict = ("IGNORE ", "") if connection.vendor == "mysql" else ("", " ON CONFLICT DO NOTHING")
    _handled[alias] += 1
    if _handled[alias] % CLEAN_EVERY == 0:
        old = timezone.now() - timedelta(seconds=retention)
        InboxMessage.objects.using(alias).filter(handled_at__lt=old).delete()
    with connection.cursor() as cursor:
        statement = f"INSERT {ignore}INTO {table} {columns} VALUES (%s, %s, %s){conflict}"
        cursor.execute(statement, [consumer, name, connection.ops.adapt_datetimefield_value(timezone.now())])
        return bool(cursor.rowcount == 1)
