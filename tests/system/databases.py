"""SQLAlchemy engines and connections for tests of the inbox and the outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

Connect = Callable[[], Any]


def engine(database: Connect) -> Any:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    with closing(database()) as connection:
        url = "sqlite://" if isinstance(connection, sqlite3.Connection) else "postgresql+psycopg://"
    return sqlalchemy.create_engine(url, creator=database, poolclass=sqlalchemy.pool.NullPool)
