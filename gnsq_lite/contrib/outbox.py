"""The transactional outbox.  A transaction stores a message, and a relay publishes the message after the commit.

::

    from gnsq_lite.contrib.outbox import Outbox

    outbox = Outbox(lambda: psycopg.connect("dbname=shop"))
    outbox.create_tables()

    with psycopg.connect("dbname=shop") as connection:
        connection.execute("UPDATE ...")
        outbox.publish(connection, "orders", b"...")        # published if the transaction commits

``gnsq-lite outbox relay shop.db:outbox`` publishes the stored messages.  The database can be PostgreSQL or SQLite, with
any DB-API 2.0 module or with SQLAlchemy.  For Django's databases use the outbox of ``gnsq_lite.contrib.django``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.contrib.databases import check_table, is_sqlite
from gnsq_lite.contrib.outbox_schedules import Body, Scheduled, ScheduleTable, declare
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.wire.commands import check_body
from gnsq_lite.wire.names import check_topic
from gnsq_lite.worker.intervals import Schedule
from gnsq_lite.writer import Writer

__all__ = ["Outbox"]

#: Default size limit of a message, in bytes.  Larger messages are rejected before they are stored.
MAX_MSG_SIZE = 1024 * 1024
_LONGEST_KEY = 255
_PUBLISH = inspect.signature(Writer.publish)


@dataclass(frozen=True)
class Row:
    """A stored message.  ``failures`` is the number of times that the message was refused.

    If a column of the row has a wrong type, ``fault`` names it, and the row cannot be published.
    """

    id: int
    topic: str
    key: str
    body: bytes
    options: dict[str, Any]
    failures: int
    fault: OptionError | None = None


def _row(number: int, due_at: Any, *values: Any) -> Row:
    """Check the values of a row, which people may have edited, and return the Row."""
    (topic, key, options), body, failures = map(_decoded, values[:3]), values[3], values[4]
    try:
        decoded = json.loads(options) if isinstance(options, str) else None
    except (ValueError, RecursionError):
        decoded = None
    wanted = {
        "topic": (topic, isinstance(topic, str), "text"),
        "ordering_key": (key, isinstance(key, str), "text"),
        "body": (body, isinstance(body, (bytes, bytearray, memoryview)), "bytes"),
        "options": (options, isinstance(decoded, dict), "a JSON object"),
        "failures": (failures, isinstance(failures, int), "a whole number"),
        "due_at": (due_at, _is_time(due_at), "a number"),
    }
    faults = [OptionError(name, value, f"must be {kind}") for name, (value, good, kind) in wanted.items() if not good]
    if faults:
        topic, key = (value if isinstance(value, str) else "" for value in (topic, key))
        return Row(number, topic, key, b"", {}, failures if isinstance(failures, int) else 0, faults[0])
    return Row(number, topic, key, bytes(body), decoded or {}, failures)


def _decoded(value: Any) -> Any:
    """Decode a text column of SQLite, which :meth:`Table.due` selects as bytes, because it may contain any bytes."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def rows_to_insert(
    topic: str,
    bodies: Iterable[bytes],
    *,
    key: str = "",
    at: datetime | float | None = None,
    max_msg_size: int = MAX_MSG_SIZE,
    clock: Clock = SYSTEM_CLOCK,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """Return the parameters of :func:`insert_into` for each body.  Raises the errors of :meth:`Outbox.publish`."""
    check_topic(topic)
    now = clock.wall()
    _PUBLISH.bind(None, topic, b"", **options)
    defer = check_number("defer", options.pop("defer", 0.0), 0, 1e10)
    if defer and at is not None:
        raise OptionError("defer", defer, "cannot be combined with at=")
    if defer:
        at = now + defer
    if at is not None and key:
        raise OptionError("key", key, "keeps messages in order, and cannot be combined with at= or defer=")
    if len(key) > _LONGEST_KEY:
        raise OptionError("key", key, f"has more than {_LONGEST_KEY} characters")
    due = 0.0 if at is None else at.timestamp() if isinstance(at, datetime) else check_number("at", at, 0, 1e11)
    rows = []
    for body in bodies:
        check_body(body, max_msg_size)
        rows.append((topic, key, bytes(body), json.dumps(options), max(now, due), due, 0, ""))
    return rows


class Table:
    """An outbox's table within a transaction.  The relays' lock is a row of the table ``NAME_relay``.

    ``publish_at`` is the time at which to publish a message, in seconds since 1970.  ``due_at`` is the time of the next
    attempt.  If ``due_at`` is 0, the message is due at once.

    Args:
        mark: Placeholder of a parameter in SQL: "%s" or "?".
        skip_locked: Whether the database supports ``FOR UPDATE SKIP LOCKED``.  SQLite does not need this clause,
            because a writing transaction blocks all other writing transactions.
        relay, schedules: Names of the tables of the lock and of the schedules.  The defaults are ``NAME_relay`` and
            ``NAME_schedules``.
        vendor: "mysql", or else PostgreSQL or SQLite is used, according to *skip_locked*.
    """

    def __init__(
        self,
        name: str,
        cursor: Any,
        mark: str,
        skip_locked: bool,
        relay: str = "",
        schedules: str = "",
        vendor: str = "",
    ) -> None:
        self._name, self._cursor, self._mark, self._skip_locked = name, cursor, mark, skip_locked
        self._relay, self._schedules = relay or f"{name}_relay", schedules or f"{name}_schedules"
        self._vendor = vendor or ("postgresql" if skip_locked else "sqlite")

    def schedules(self) -> ScheduleTable:
        """Return the table of the schedules, in the same transaction."""
        return ScheduleTable(self._schedules, self._cursor, self._mark, self._vendor)

    def store(self, topic: str, body: bytes, **options: Any) -> None:
        """Store a message.  Arguments and errors are those of :meth:`Outbox.publish`."""
        self._cursor.executemany(insert_into(self._name, self._mark), rows_to_insert(topic, [body], **options))

    def create(self) -> None:
        """Create the tables, the indexes and the lock's row, unless they exist."""
        key, body = ("BIGSERIAL", "BYTEA") if self._skip_locked else ("INTEGER", "BLOB")
        index = self._name.replace(".", "_")
        for statement in (
            f"CREATE TABLE IF NOT EXISTS {self._name} (id {key} PRIMARY KEY, topic VARCHAR(255) NOT NULL,"
            f" ordering_key VARCHAR(255) NOT NULL, body {body} NOT NULL, options TEXT NOT NULL,"
            " publish_at DOUBLE PRECISION NOT NULL, due_at DOUBLE PRECISION NOT NULL,"
            " failures INTEGER NOT NULL, error TEXT NOT NULL)",
            f"CREATE INDEX IF NOT EXISTS {index}_due ON {self._name} (due_at, id)",
            f"CREATE INDEX IF NOT EXISTS {index}_held_up ON {self._name} (topic, ordering_key, id)",
            f"CREATE TABLE IF NOT EXISTS {self._relay} (id INTEGER PRIMARY KEY, turns BIGINT NOT NULL)",
        ):
            self._cursor.execute(statement)
        self._insert_lock()
        self.schedules().create()

    def is_due(self, now: float) -> bool:
        """Return whether a message is due."""
        least = f"SELECT MIN(due_at) FROM {self._name}"  # MIN() and MAX() always use the index
        self._cursor.execute(f"SELECT ({least}), ({least.replace('MIN', 'MAX')})")
        first, last = self._cursor.fetchone()
        return first is not None and (not _is_time(first) or bool(first <= now) or not _is_time(last))

    def lock(self) -> bool:
        """Take the lock until the transaction ends.  Return False if another relay holds the lock."""
        if self._skip_locked:
            self._cursor.execute(f"SELECT id FROM {self._relay} WHERE id = 1 FOR UPDATE SKIP LOCKED")
            locked = self._cursor.fetchone() is not None
        else:
            self._cursor.execute(f"UPDATE {self._relay} SET turns = turns + 1 WHERE id = 1")
            locked = self._cursor.rowcount == 1
        if not locked:
            self._insert_lock()  # the row may be missing; the next call can then lock it
        return locked

    def _insert_lock(self) -> None:
        self._cursor.execute(f"SELECT 1 FROM {self._relay} WHERE id = 1")
        if self._cursor.fetchone() is None:
            self._cursor.execute(f"INSERT INTO {self._relay} (id, turns) VALUES (1, 0)")

    def due(self, now: float, limit: int) -> list[Row]:
        """Return messages to publish, in the order of their ids.  A row with an invalid ``due_at`` is due.

        A refused message delays later messages of the same topic and key until it is published or deleted.
        """
        columns, invalid = "id, due_at, topic, ordering_key, options, body, failures", "due_at = 'NaN'"
        if not self._skip_locked:  # any column of SQLite may contain any type; text and blobs are above all numbers
            invalid, text = "due_at >= ''", "CASE WHEN typeof({0}) = 'text' THEN CAST({0} AS BLOB) END"
            texts = ", ".join(map(text.format, ("topic", "ordering_key", "options")))
            columns = f"id, due_at, {texts}, CASE WHEN typeof(body) = 'blob' THEN body END, failures + 0"
        self._cursor.execute(
            f"SELECT {columns} FROM {self._name} m WHERE (due_at <= {self._mark} OR {invalid})"
            f" AND NOT EXISTS (SELECT 1 FROM {self._name} h WHERE m.ordering_key <> '' AND h.failures > 0"
            " AND h.topic = m.topic AND h.ordering_key = m.ordering_key AND h.id < m.id)"
            f" ORDER BY due_at, id LIMIT {limit:d}",
            (now,),
        )
        found = sorted(self._cursor.fetchall(), key=lambda row: row[0])
        return [_row(*row) for row in found]

    def delete(self, ids: Sequence[int]) -> None:
        """Delete the messages with these ids."""
        if ids:
            marks = ", ".join([self._mark] * len(ids))
            self._cursor.execute(f"DELETE FROM {self._name} WHERE id IN ({marks})", tuple(ids))

    def refuse(self, row: Row, error: str, due_at: float) -> None:
        """Store the error with which a message was refused, and the time of the next attempt."""
        values = f"failures = failures + 1, error = {self._mark}, due_at = {self._mark}"
        self._cursor.execute(f"UPDATE {self._name} SET {values} WHERE id = {self._mark}", (error, due_at, row.id))

    def backlog(self, now: float) -> tuple[int, float, int]:
        """Return the number of overdue messages, the seconds by which the oldest is overdue, and the number refused."""
        due = f"CASE WHEN publish_at <= {self._mark} THEN publish_at END"
        refused = "CASE WHEN failures > 0 THEN 1 END"
        statement = f"SELECT COUNT({due}), MIN({due}), COUNT({refused}) FROM {self._name}"
        self._cursor.execute(statement, (now, now))
        count, oldest, failed = self._cursor.fetchone()
        return int(count), 0.0 if oldest is None else max(0.0, now - oldest), int(failed)


def _is_time(value: Any) -> bool:
    """Return whether *value* is a number.  SQLite stores any type in a column, and PostgreSQL may store NaN."""
    return isinstance(value, (int, float)) and value == value


def insert_into(table: str, mark: str) -> str:
    """Return the INSERT statement for a message.  *mark* is the placeholder of a parameter."""
    columns = "topic, ordering_key, body, options, publish_at, due_at, failures, error"
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join([mark] * 8)})"


@dataclass(frozen=True)
class Source:
    """Functions with which a relay reads an outbox.

    Attributes:
        name: Name of the outbox in logs and metrics.
        begin: Context manager that begins a transaction, yields the table, and commits, or rolls back after an error.
        close: Function that closes the connection of the calling thread.
        schedules: The schedules that the program declares.
    """

    name: str
    begin: Callable[[], AbstractContextManager[Table]]
    close: Callable[[], None]
    schedules: Sequence[Scheduled] = ()


def add_schedule(
    declared: list[Scheduled], name: str, when: Any, topic: str, body: Body, missed: str, options: dict[str, Any]
) -> None:
    """Check a schedule and add it to *declared*.  Raises the errors of :meth:`Outbox.every`."""
    rows_to_insert(topic, [b"x" if callable(body) else body], **options)
    declare(declared, name, when, topic, body, missed, options)


class Outbox:
    """Stores messages in a database.  A relay publishes the messages of a transaction after the commit.

    Args:
        connect: Function that opens a DB-API connection without autocommit for the relay.  With SQLAlchemy, pass
            ``engine.raw_connection``.
        table: Name of the table.
        max_msg_size: Maximum size in bytes of a message, as configured in nsqd.
    """

    def __init__(
        self, connect: Callable[[], Any], *, table: str = "nsq_outbox", max_msg_size: int = MAX_MSG_SIZE
    ) -> None:
        check_table(table)
        self._connect, self._table, self._max_msg_size = connect, table, max_msg_size
        #: The schedules that :meth:`every` has declared.
        self.schedules: list[Scheduled] = []

    def create_tables(self) -> None:
        """Create the tables, unless they exist."""
        source = self.source()
        try:
            with source.begin() as table:
                table.create()
        finally:
            source.close()

    def publish(
        self,
        connection: Any,
        topic: str,
        body: bytes,
        *,
        key: str = "",
        at: datetime | float | None = None,
        **options: Any,
    ) -> None:
        """Store a message in the transaction of *connection*.  A relay publishes it at least once after the commit.

        Args:
            connection: A DB-API connection, or a Connection or Session of SQLAlchemy.
            key: Messages of one topic and key are published in the order in which they were stored.  For Youzan's nsqd
                the key also selects the topic partition.
            at: Time at which to publish the message: an aware datetime, or seconds since 1970.
            options: Options of ``Writer.publish`` with values that JSON can encode.  ``defer`` counts from now.
        Raises:
            InvalidName, BodyTypeError, InvalidBody, MessageTooLarge, OptionError, TypeError: no message is stored.
        """
        self.publish_many(connection, topic, [body], key=key, at=at, **options)

    def publish_many(self, connection: Any, topic: str, bodies: Iterable[bytes], **options: Any) -> None:
        """Store several messages, in order.  If this raises an error of :meth:`publish`, no message is stored."""
        rows = rows_to_insert(topic, bodies, max_msg_size=self._max_msg_size, **options)
        if not rows:
            return
        if hasattr(connection, "cursor"):
            mark = "?" if is_sqlite(connection) else "%s"
            connection.cursor().executemany(insert_into(self._table, mark), rows)
            return
        if callable(connection.connection):  # SQLAlchemy's Session
            connection = connection.connection()
        mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
        connection.exec_driver_sql(insert_into(self._table, mark), rows)

    def every(
        self,
        name: str,
        when: str | float | Schedule,
        topic: str,
        body: Body,
        *,
        missed: Literal["latest", "none"] = "latest",
        **options: Any,
    ) -> None:
        """Let the relays store a message at each due time of *when*.  Each due time is stored at most once.

        Call it when the program starts, in each process that relays.  The time is the database's clock.

        Args:
            name: Name of the schedule, which is its key in the table.  A renamed schedule is a new one.
            when: An interval such as "5m" (due at :00, :05 ...), a number of seconds, a cron expression of five fields
                in UTC, or an object with next_after(wall), such as a ``Cron``.
            body: A body, or a function that returns the body for a due time in seconds since 1970.  It runs in the
                transaction that stores the message.
            missed: Due times of the last 30 seconds are all stored.  If the latest due time is older, because no relay
                ran, it is stored ("latest") or not ("none").
            options: Options of :meth:`publish`, except ``at``.
        Raises:
            OptionError, InvalidName, BodyTypeError, InvalidBody, MessageTooLarge, MissingExtra
        """
        if "at" in options:
            raise OptionError("at", options["at"], "is the schedule's")
        add_schedule(self.schedules, name, when, topic, body, missed, {"max_msg_size": self._max_msg_size, **options})

    def source(self) -> Source:
        """Return the outbox's source for a relay.  The source opens one connection, and reconnects after an error."""
        opened: list[Any] = []

        def connection() -> Any:
            if not opened:
                opened.append(self._connect())
                if getattr(opened[0], "autocommit", False) is True:
                    close()
                    raise OptionError("connect", self._connect, "returns a connection with autocommit: turn it off")
            return opened[0]

        def close() -> None:
            while opened:
                opened.pop().close()

        @contextmanager
        def begin() -> Iterator[Table]:
            try:
                current = connection()
                cursor, sqlite = current.cursor(), is_sqlite(current)
                if sqlite and not current.in_transaction:
                    cursor.execute("BEGIN")  # sqlite3 may be configured not to begin transactions itself
                yield Table(self._table, cursor, "?" if sqlite else "%s", not sqlite)
                current.commit()
            except BaseException:
                close()  # closing rolls the transaction back
                raise

        return Source(self._table, begin, close, self.schedules)
