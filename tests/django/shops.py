"""Copies of the Django project that tests run commands in."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from tests.fork_server import ForkServer
from tests.programs import Program, running
from tests.servers import http_call

PROJECT = Path(__file__).parent / "project"
COMMANDS = ("check", "makemigrations", "migrate", "shell")
#: Has imported what manage.py imports.
DJANGO = ForkServer(
    (
        *("django.test", "django.db.backends.postgresql.base", "django.db.backends.sqlite3.base"),
        *(f"django.core.management.commands.{name}" for name in COMMANDS),
        *("gnsq_lite.contrib.django.outbox", "gnsq_lite.contrib.django.management.commands.nsq_worker"),
    ),
    ("-W", "error"),
)


class Shop:
    """A copy of the Django project, with a new database and a new nsqd."""

    def __init__(self, folder: Path, nsqd: Broker) -> None:
        self.folder, self.nsqd = folder, nsqd
        self.env = {"SHOP_DATABASE": str(folder / "shop.sqlite3"), "SHOP_NSQD": nsqd.nsqd_tcp_address}

    @contextmanager
    def manage(self, *arguments: str) -> Iterator[Program]:
        with self.program("manage.py", *arguments, name=arguments[0]) as program:
            yield program

    def program(self, *arguments: str, name: str = "program") -> AbstractContextManager[Program]:
        """Run Python with *arguments* in the project."""
        return running(arguments, self.folder, env=self.env, name=name, start=DJANGO.start)

    def call(self, *arguments: str, code: int = 0) -> str:
        with self.manage(*arguments) as program:
            assert program.ends() == code, program.output
            return program.output

    def billed(self) -> dict[str, bool]:
        with closing(sqlite3.connect(self.env["SHOP_DATABASE"])) as database:
            return {
                number: bool(billed) for number, billed in database.execute("SELECT number, billed FROM shop_order")
            }

    def depth(self, topic: str) -> int:
        stats = json.loads(http_call(self.nsqd.http_address, "GET", "/stats?format=json").body)
        return sum(t["depth"] for t in stats["topics"] or [] if t["topic_name"] == topic)

    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            assert http_call(self.nsqd.http_address, "POST", f"/pub?topic={topic}", body).status == 200


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a database that has its tables: each test gets a copy."""
    folder = tmp_path_factory.mktemp("migrated") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with Broker(lookupd=False) as nsqd:
        Shop(folder, nsqd).call("migrate", "--verbosity", "0")
    return folder


@pytest.fixture
def shop(tmp_path: Path, migrated: Path) -> Iterator[Shop]:
    shutil.copytree(migrated, tmp_path / "project")
    with Broker(lookupd=False) as nsqd:
        yield Shop(tmp_path / "project", nsqd)
