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

from gnsq_lite.contrib.inbox import HANDLED_BEFORE, RETENTION, Keys, checked_key, consumer_of
from gnsq_lite.keywords import check_runs

log = logging.getLogger("gnsq_lite.django")

#: Number of duplicates that were finished without calling the handler, by topic/channel.
duplicates: Counter[str] = Counter()
#: The keys of each database.
_keys: dict[str, Keys] = {}


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
            from gnsq_lite.contrib.django.models import InboxMessage

            consumer, name = consumer_of(given[-1]), checked_key(key(*given))
            with transaction.atomic(using=using):
                alias = using or router.db_for_write(InboxMessage)
                connection, now = connections[alias], timezone.now()
                keys = _keys.setdefault(alias, Keys(connection.ops.quote_name(InboxMessage._meta.db_table)))
                time_of = connection.ops.adapt_datetimefield_value
                with connection.cursor() as cursor:
                    if keys.add(cursor, "%s", connection.vendor == "mysql", consumer, name, time_of(now)):
                        function(*given)
                        keys.clean(cursor, "%s", time_of(now - timedelta(seconds=retention)))
                        return
            duplicates[consumer] += 1
            log.info(HANDLED_BEFORE, name, consumer)

        vars(handle)["nsq_inbox"] = using  # nsq_worker checks that the table is there
        vars(handle)["nsq_takes_one"] = True  # Reader refuses batch_size
        return handle

    return decorate
