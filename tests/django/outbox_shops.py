"""Copies of the Django project with an outbox in both of its databases."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gnsq_lite import Message, Reader
from gnsq_lite.broker import Broker
from tests.django.postgres import Postgres, is_there, postgres
from tests.django.shops import PROJECT, Shop
from tests.programs import wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres | None]:
    if not is_there():
        yield None
        return
    with postgres() as running:
        yield running


class OutboxShop(Shop):
    """The project, with an outbox in both of its databases."""

    def __init__(self, folder: Path, nsqd: Broker, server: Postgres | None) -> None:
        super().__init__(folder, nsqd)
        self.server = server
        self.env["SHOP_OUTBOX"] = "default other"
        if server is not None:
            self.env["SHOP_POSTGRES"] = str(server.folder)

    def select(self, statement: str, database: str = "shop") -> list[str]:
        """Return the first column of what *statement* finds."""
        if self.server is not None:
            return self.server.sql(statement, database=database).splitlines()
        path = self.env["SHOP_DATABASE"] + ("" if database == "shop" else "." + database)
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            return [str(row[0]) for row in connection.execute(statement)]

    def stored(self, database: str = "shop") -> int:
        return int(self.select("select count(*) from gnsq_lite_outboxmessage", database)[0])

    def script(self, text: str) -> str:
        return self.call("shell", "-v", "0", "-c", text)

    def received(self, topic: str, count: int) -> list[bytes]:
        """Return what is in *topic*, at least *count* messages, in its order."""
        found: list[bytes] = []

        def take(message: Message) -> None:
            found.append(message.body)

        with Reader(topic, "all", take, nsqd_tcp_addresses=self.nsqd.nsqd_tcp_address, max_in_flight=1) as reader:
            wait_for(lambda: len(set(found)) >= count and self.depth(topic) == 0, what=f"not {count} came")
            wait_for(lambda: reader.stats().finished == len(found))
        return found


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory, server: Postgres | None) -> Path:
    """The project with databases that have their tables: each test gets copies."""
    folder = tmp_path_factory.mktemp("migrated") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with Broker(lookupd=False) as nsqd:
        made = OutboxShop(folder, nsqd, server)
        for database in ("default", "other"):
            made.call("migrate", "--verbosity", "0", "--database", database)
    if server is not None:
        server.keep()
    return folder


@pytest.fixture
def shop(tmp_path: Path, migrated: Path, server: Postgres | None) -> Iterator[OutboxShop]:
    shutil.copytree(migrated, tmp_path / "project")
    if server is not None:
        server.new_databases()
    with Broker(lookupd=False) as nsqd:
        yield OutboxShop(tmp_path / "project", nsqd, server)
