"""The inbox of a DB-API connection: duplicates of a message have no effect."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Worker
from gnsq_lite.contrib import inbox as inbox_module
from gnsq_lite.contrib.inbox import Inbox, checked_key
from gnsq_lite.errors import OptionError
from gnsq_lite.testing import make_message
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.databases import engine


@pytest.fixture
def inboxes() -> Iterator[list[Inbox]]:
    made: list[Inbox] = []
    yield made
    for each in made:
        each.close()


def rows(database: Any, statement: str) -> list[Any]:
    with closing(database()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


def made(inboxes: list[Inbox], database: Any, **options: Any) -> Inbox:
    inbox = Inbox(database, **options)
    inboxes.append(inbox)
    inbox.create_table()
    inbox.create_table()
    with closing(database()) as connection:
        connection.cursor().execute("CREATE TABLE effects (name VARCHAR(100))")
        connection.commit()
    return inbox


def effect(connection: Any, name: str) -> None:
    connection.cursor().execute(f"INSERT INTO effects VALUES ('{name}')")


def test_the_second_delivery_and_the_second_publish_have_no_effect(database: Any, inboxes: list[Inbox]) -> None:
    inbox = made(inboxes, database)

    @inbox.once(key=lambda message: message.body)
    def handle(message: Any, connection: Any) -> None:
        effect(connection, message.body.decode())

    first = make_message(b"a", topic="t", channel="ch")
    again = make_message(b"a", 2, id=first.id, topic="t", channel="ch")
    for message in (first, again, make_message(b"a", topic="t", channel="ch"), make_message(b"b")):
        handle(message)
    handle(make_message(b"a", topic="t", channel="other"))  # another channel handles it too
    assert sorted(rows(database, "SELECT name FROM effects")) == ["a", "a", "b"]
    assert inbox.duplicates == 2


def test_an_inbox_uses_connections_of_an_sqlalchemy_engine(database: Any, inboxes: list[Inbox]) -> None:
    inbox = made(inboxes, engine(database).raw_connection)

    @inbox.once(key=lambda message: message.body)
    def handle(message: Any, connection: Any) -> None:
        effect(connection, "x")

    for _ in range(2):
        handle(make_message(b"a"))
    assert rows(database, "SELECT name FROM effects") == ["x"]
    assert inbox.duplicates == 1


def test_a_handler_that_raises_has_no_effect_and_its_message_may_come_again(
    database: Any, inboxes: list[Inbox]
) -> None:
    inbox = made(inboxes, database)

    @inbox.once(key=lambda value, message: value)
    def handle(value: int, message: Any, connection: Any) -> None:
        effect(connection, f"{value} {message.attempts}")
        if message.attempts == 1:
            raise ValueError

    with pytest.raises(ValueError):
        handle(7, make_message(attempts=1))
    handle(7, make_message(attempts=2))
    assert rows(database, "SELECT name FROM effects") == ["7 2"]


def test_concurrent_deliveries_of_one_key_have_one_effect(
    database: Any, inboxes: list[Inbox], broker: ServerHandle, topic: str
) -> None:
    inbox = made(inboxes, database)
    worker = Worker(nsqd_tcp_addresses=broker.tcp_address, requeue_delay=0.0, backoff=False, max_attempts=0)

    @worker.handler(topic, "ch", concurrency=8)
    @inbox.once(key=lambda message: message.body)
    def handle(message: Any, connection: Any) -> None:
        effect(connection, message.body.decode())

    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % (number % 20) for number in range(100)])
    worker.start()
    try:
        wait_for(lambda: worker.stats()[0].finished == 100)
    finally:
        worker.close()
    assert sorted(map(int, rows(database, "SELECT name FROM effects"))) == list(range(20))
    assert inbox.duplicates == 80


def test_close_closes_the_connections_of_all_threads_and_a_later_message_opens_another(
    tmp_path: Path, inboxes: list[Inbox]
) -> None:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "shop.sqlite3", timeout=60, check_same_thread=False))
        return opened[-1]

    inbox = made(inboxes, connect)
    del opened[:]

    @inbox.once(key=lambda message: message.body)
    def handle(message: Any, connection: Any) -> None:
        effect(connection, "x")

    handle(make_message(b"0"))
    threads = [threading.Thread(target=handle, args=(make_message(b"%d" % number),)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(opened)) == 4
    inbox.close()
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    handle(make_message(b"4"))
    assert len(opened) == 5


def test_old_keys_are_deleted_once_in_twenty_messages(
    database: Any, inboxes: list[Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "CLEAN_EVERY", 20)
    clock = FakeClock()
    inbox = made(inboxes, database, retention=100.0, clock=clock)

    @inbox.once(key=lambda message: message.body)
    def handle(message: Any, connection: Any) -> None:
        pass

    handle(make_message(b"old"))
    clock.advance(101.0)
    for number in range(20):
        handle(make_message(b"%d" % number))
    assert len(rows(database, "SELECT message FROM nsq_inbox")) == 20
    assert rows(database, "SELECT message FROM nsq_inbox WHERE message = 'old'") == []


@pytest.mark.parametrize("key", [None, "", b"", "x" * 256])
def test_an_invalid_key_fails_the_message(key: Any) -> None:
    with pytest.raises(OptionError, match="must be 1 to 255 characters"):
        checked_key(key)


def test_keys_are_texts_and_a_table_has_a_plain_name() -> None:
    assert [checked_key(key) for key in (7, "é", b"\xff", ("order", 7))] == ["7", "é", "\\xff", "('order', 7)"]
    with pytest.raises(OptionError, match="letters, digits"):
        Inbox(sqlite3.connect, table="x; drop table y")
