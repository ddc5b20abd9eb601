"""The outbox of a Django project, which is :mod:`gnsq_lite.contrib.outbox` with the project's databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from gnsq_lite.contrib.django.conf import nsq_settings
from gnsq_lite.contrib.outbox import MAX_MSG_SIZE, Source, Table, add_schedule, insert_into, rows_to_insert
from gnsq_lite.contrib.outbox_schedules import Body, Scheduled
from gnsq_lite.contrib.relay import INTERVAL
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.worker.intervals import Schedule

_TABLE, _RELAY, _SCHEDULES = "gnsq_lite_outboxmessage", "gnsq_lite_outboxrelay", "gnsq_lite_outboxschedule"
#: The schedules of each database that the apps' ``nsq.py`` declare.
_declared: dict[str, list[Scheduled]] = {}


def outbox_databases() -> Sequence[str]:
    """Return the aliases of the databases whose outboxes are relayed.  Raises ImproperlyConfigured."""
    found = nsq_settings().get("OUTBOX", ())
    if isinstance(found, str) or any(alias not in connections for alias in found):
        raise ImproperlyConfigured(f"NSQ['OUTBOX'] must be a list of names of DATABASES, not {found!r}")
    return tuple(found)


def interval() -> float:
    """Return the seconds between two polls of an outbox, from the settings.  Raises ImproperlyConfigured."""
    found = nsq_settings().get("OUTBOX_INTERVAL", INTERVAL)
    try:
        return float(check_number("NSQ['OUTBOX_INTERVAL']", found, 0.01, 3600))
    except OptionError as error:
        raise ImproperlyConfigured(str(error)) from None


class DjangoOutbox:
    """Stores messages.  Messages of a transaction that rolls back are never published."""

    def __init__(self, max_msg_size: int) -> None:
        self._max_msg_size = max_msg_size

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: str = "",
        at: datetime | float | None = None,
        using: str | None = None,
        **options: Any,
    ) -> None:
        """Store a message in the database *using*.  A relay publishes the message at least once after the commit.

        Arguments and errors are the same as for :meth:`gnsq_lite.contrib.outbox.Outbox.publish`.  Also raises
        ImproperlyConfigured if ``NSQ["OUTBOX"]`` does not name the database, because no process would relay messages.
        """
        self.publish_many(topic, [body], key=key, at=at, using=using, **options)

    def publish_many(self, topic: str, bodies: Iterable[bytes], *, using: str | None = None, **options: Any) -> None:
        """Store several messages, in order.  If this raises an error of :meth:`publish`, no message is stored."""
        alias = DEFAULT_DB_ALIAS if using is None else using
        _check_relayed(alias)
        rows = rows_to_insert(topic, bodies, max_msg_size=self._max_msg_size, **options)
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.executemany(insert_into(_TABLE, "%s"), rows)


def max_msg_size() -> int:
    """Return the maximum size in bytes of a message, from the settings."""
    return int(nsq_settings().get("WRITER", {}).get("max_msg_size", MAX_MSG_SIZE))


def schedules(alias: str) -> list[Scheduled]:
    """Return the schedules of one database that the apps' ``nsq.py`` have declared so far."""
    return _declared.setdefault(alias, [])


def every(
    name: str,
    when: str | float | Schedule,
    topic: str,
    body: Body,
    *,
    missed: Literal["latest", "none"] = "latest",
    using: str = DEFAULT_DB_ALIAS,
    **options: Any,
) -> None:
    """Let the workers store a message in the outbox of the database *using* at each due time of *when*.

    Call it in an app's ``nsq.py``.  Arguments and errors are those of :meth:`gnsq_lite.contrib.outbox.Outbox.every`.
    Also raises ImproperlyConfigured if ``NSQ["OUTBOX"]`` does not name the database.
    """
    _check_relayed(using)
    if "at" in options:
        raise OptionError("at", options["at"], "is the schedule's")
    given = {"max_msg_size": max_msg_size(), **options}
    add_schedule(schedules(using), name, when, topic, body, missed, given)


def _check_relayed(alias: str) -> None:
    if alias not in outbox_databases():
        raise ImproperlyConfigured(f"NSQ['OUTBOX'] does not name {alias!r}: no process would relay its messages")


def source(alias: str) -> Source:
    """Return the source from which a relay reads the outbox of one database."""

    @contextmanager
    def begin() -> Iterator[Table]:
        connection = connections[alias]
        connection.queries_log.clear()  # with DEBUG=True, Django keeps the SQL until the next request
        try:
            with transaction.atomic(using=alias), connection.cursor() as cursor:
                skips = connection.features.has_select_for_update_skip_locked
                yield Table(_TABLE, cursor, "%s", skips, _RELAY, _SCHEDULES, connection.vendor)
        except BaseException:
            connection.close()  # the connection may be broken
            raise

    def close() -> None:
        connections[alias].close()

    return Source(alias, begin, close, schedules(alias))
