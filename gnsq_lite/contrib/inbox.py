"""Runs a handler once per message, with an inbox table in the database that the handler changes.

::

    from gnsq_lite.contrib.inbox import Inbox

    inbox = Inbox(lambda: psycopg.connect("dbname=shop"))
    inbox.create_table()

    @worker.handler("orders", "billing")
    @inbox.once(key=lambda message: json.loads(message.body)["order"])
    def bill(message, connection):
        connection.cursor().execute("UPDATE ...")       # committed with the inbox's row

Any DB-API 2.0 module for PostgreSQL, SQLite or MySQL works.  For Django, use ``gnsq_lite.contrib.django.once``.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.contrib.databases import check_table, driver_of, is_sqlite
from gnsq_lite.errors import OptionError
from gnsq_lite.keywords import check_runs
from gnsq_lite.message import Message
from gnsq_lite.option_fields import check_number

__all__ = ["Inbox"]

log = logging.getLogger("gnsq_lite.inbox")

#: Seconds for which keys are kept.  A message that is delivered again after this time is handled again.
RETENTION = 7 * 86400.0
#: Log message about a duplicate, with its key and consumer.
HANDLED_BEFORE = "key %r of %s was handled before; the message is finished without calling the handler"
#: Number of messages that a process handles between two deletions of old keys.
CLEAN_EVERY = 1000
_LONGEST_KEY = 255


class Keys:
    """The keys in a table.  *mark* is the placeholder of a parameter, and times have the type of the table's column."""

    def __init__(self, table: str) -> None:
        self._table, self._handled = table, 0

    def add(self, cursor: Any, mark: str, is_mysql: bool, *row: Any) -> bool:
        """Insert the *row* (consumer, key, time), and return whether the key is new.

        If another transaction is inserting the same key, the statement waits until that transaction ends.
        """
        ignore, conflict = ("IGNORE ", "") if is_mysql else ("", " ON CONFLICT DO NOTHING")
        columns = "(consumer, message, handled_at)"
        cursor.execute(f"INSERT {ignore}INTO {self._table} {columns} VALUES ({mark}, {mark}, {mark}){conflict}", row)
        return bool(cursor.rowcount == 1)

    def clean(self, cursor: Any, mark: str, oldest: Any) -> None:
        """Count a handled message.  After each CLEAN_EVERY messages, delete the rows before the time *oldest*."""
        self._handled += 1
        if self._handled % CLEAN_EVERY == 0:
            cursor.execute(f"DELETE FROM {self._table} WHERE handled_at < {mark}", (oldest,))


class Inbox:
    """Runs a handler, and stores the key of the message in the same transaction.

    Args:
        connect: Function that opens a connection.  Each thread keeps its connection until an error or :meth:`close`.
            For SQLite, pass ``check_same_thread=False``: otherwise only its own thread can close a connection.
        table: Name of the table.
        retention: Seconds for which keys are kept.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        table: str = "nsq_inbox",
        retention: float = RETENTION,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_table(table)
        check_number("retention", retention, 1, 1e10)
        self._connect, self._table, self._retention, self._clock = connect, table, retention, clock
        self._local, self._open = threading.local(), set[Any]()
        self._keys = Keys(table)
        #: Number of duplicates that were finished without calling the handler.
        self.duplicates = 0

    def create_table(self) -> None:
        """Create the table if it is missing."""
        connection = self._connect()
        try:
            connection.cursor().execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (consumer VARCHAR(130) NOT NULL,"
                " message VARCHAR(255) NOT NULL, handled_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (consumer, message))"
            )
            connection.commit()
        finally:
            connection.close()

    def once(self, key: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., None]]:
        """Return a decorator that calls the handler once per key, with the connection as last argument.

        Args:
            key: Function of the handler's arguments that returns the message's key, such as the number and state of an
                order.  All deliveries and all publishes of a message must have the same key.
        """

        def decorate(function: Callable[..., Any]) -> Callable[..., None]:
            check_runs("handler", function)  # a transaction belongs to one thread, and cannot wait for an event loop

            @functools.wraps(function)
            def handle(*given: Any) -> None:
                self._handle(function, consumer_of(given[-1]), checked_key(key(*given)), given)

            vars(handle)["nsq_takes_one"] = True  # Reader refuses batch_size
            return handle

        return decorate

    def close(self) -> None:
        """Close the connections of all threads.  Call this, for example, in ``Middleware.stopped``."""
        self._local, to_close, self._open = threading.local(), self._open, set[Any]()
        for connection in to_close:
            _close(connection)

    def _handle(self, function: Callable[..., Any], consumer: str, key: str, given: tuple[Any, ...]) -> None:
        local, opened = self._local, self._open  # close() replaces both
        connection = getattr(local, "connection", None) or self._connect()
        opened.add(connection)
        local.connection = None
        try:
            mark = "?" if is_sqlite(connection) else "%s"
            now, cursor = self._clock.wall(), connection.cursor()
            if self._keys.add(cursor, mark, "mysql" in driver_of(connection), consumer, key, now):
                function(*given, connection)
                self._keys.clean(cursor, mark, now - self._retention)
            else:
                self.duplicates += 1
                log.info(HANDLED_BEFORE, key, consumer)
            connection.commit()
        except BaseException:
            opened.discard(connection)
            _close(connection)  # closing rolls the transaction back
            raise
        local.connection = connection


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # a broken connection, or SQLite's connection of another thread
        log.warning("cannot close a database connection of the inbox: %s", error)


def consumer_of(message: Message) -> str:
    """Return the message's topic and channel, because each channel handles a message once."""
    return f"{message.topic}/{message.channel}"


def checked_key(key: object) -> str:
    """Convert a key to text.  Raises OptionError for None, "" and a key that is too long."""
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
    if key is None or not text or len(text) > _LONGEST_KEY:
        raise OptionError("key", key, f"must be 1 to {_LONGEST_KEY} characters")
    return text
