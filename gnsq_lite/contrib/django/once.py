"""``@once``: a handler that runs once for each key, in a transaction with the inbox's row."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connections, router, transaction
from django.utils import timezone

from gnsq_lite.contrib.inbox import CLEAN_EVERY, RETENTION, checked_key, consumer_of

log = logging.getLogger("gnsq_lite.django")

#: Duplicates that were finished without a call, by topic/channel.
duplicates: Counter[str] = Counter()
_handled: Counter[str] = Counter()


def once(
    key: Callable[..., object], *, using: str | None = None, retention: float = RETENTION
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator for a handler: it runs in ``transaction.atomic()``, once for each key.

    A message is finished after the commit; a duplicate is finished without a call, and counted.

    Args:
        key: A function of what the handler gets; returns what names the message, the same in each delivery and in each
            publish of it.
        using: Name of the database, the one that the handler changes.
        retention: Seconds for which keys are kept.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def handle(*given: Any) -> None:
            consumer, name = consumer_of(given[-1]), checked_key(key(*given))
            with transaction.atomic(using=using):
                if _is_first(consumer, name, using, retention):
                    function(*given)
                    return
            duplicates[consumer] += 1
            log.info("%r of %s was handled before: it is finished without a call", name, consumer)

        return handle

    return decorate


def _is_first(consumer: str, name: str, using: str | None, retention: float) -> bool:
    """Insert the row in one statement; return whether the key is new.

    Where another transaction inserts the same key, the database waits for its end.
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
