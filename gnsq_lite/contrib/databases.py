"""Differences between databases and DB-API modules, for the outbox and the inbox."""

from __future__ import annotations

from typing import Any

from gnsq_lite.errors import OptionError


def check_table(table: str) -> None:
    """Raise OptionError unless *table* can be the name of a table in SQL without quotes."""
    if not table.replace("_", "").replace(".", "").isalnum():
        raise OptionError("table", table, "must have letters, digits, dots and underscores only")


def driver_of(connection: Any) -> str:
    """Return the DB-API module of *connection*, which may come from SQLAlchemy's raw_connection()."""
    inner = getattr(connection, "driver_connection", connection)
    return type(inner).__module__.lower()


def is_sqlite(connection: Any) -> bool:
    """Return whether *connection* is to SQLite.  SQLite's placeholder for a parameter is "?" instead of "%s"."""
    return "sqlite3" in driver_of(connection)
