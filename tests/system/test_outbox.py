"""The outbox of DB-API connections and SQLAlchemy: only messages of committed transactions are published."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Worker, Writer, errors
from gnsq_lite.contrib.inbox import Inbox
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.contrib.relay import Relay, RelayInWorker
from tests.cli import programs
from tests.fakes import FakeClock
from tests.programs import STARTING, Program, running, wait_for
from tests.servers import RealNsqd, ServerHandle, nsqd_program
from tests.system.databases import Connect, engine


@pytest.fixture
def outbox(database: Connect) -> Outbox:
    made = Outbox(database)
    made.create_tables()
    made.create_tables()
    return made


@pytest.fixture
def writer(broker: ServerHandle) -> Iterator[Writer]:
    with Writer(broker.tcp_address, publish_timeout=20.0) as made:
        yield made


def select(database: Connect, statement: str) -> list[Any]:
    with closing(database()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


def execute(database: Connect, statement: str) -> None:
    with closing(database()) as connection:
        connection.cursor().execute(statement)
        connection.commit()


def stored(database: Connect) -> int:
    return int(select(database, "SELECT COUNT(*) FROM nsq_outbox")[0])


def store(database: Connect, outbox: Outbox, topic: str, *bodies: bytes, **options: Any) -> None:
    with closing(database()) as connection:
        outbox.publish_many(connection, topic, bodies, **options)
        connection.commit()


def relay_all(relay: Relay) -> None:
    while relay.publish_batch():
        pass
    relay.source.close()


def depth(broker: ServerHandle, topic: str) -> int:
    return int(broker.stats(topic, "ch")["depth"])


def received(broker: ServerHandle, topic: str, count: int) -> list[bytes]:
    """Return the next *count* messages of the topic, in its order."""
    found: list[bytes] = []

    def take(message: Message) -> None:
        found.append(message.body)

    with Reader(topic, "ch", take, nsqd_tcp_addresses=broker.tcp_address) as reader:
        wait_for(lambda: len(found) == count and reader.stats().finished == count)
    return found


def dbapi(database: Connect, act: Callable[[Any], None]) -> None:
    with closing(database()) as connection:
        act(connection)
        connection.commit()


def sqlalchemy_connection(database: Connect, act: Callable[[Any], None]) -> None:
    with engine(database).connect() as connection:
        act(connection)
        connection.commit()


def sqlalchemy_session(database: Connect, act: Callable[[Any], None]) -> None:
    bound = engine(database)
    from sqlalchemy.orm import Session  # type: ignore[import-not-found]

    with Session(bound) as session:
        act(session)
        session.commit()


@pytest.mark.parametrize("transaction", [dbapi, sqlalchemy_connection, sqlalchemy_session])
def test_a_committed_message_is_published_and_a_rolled_back_message_is_not(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str, transaction: Any
) -> None:
    broker.prepare(topic, "ch")
    transaction(database, lambda connection: outbox.publish(connection, topic, b"1"))
    transaction(database, lambda connection: outbox.publish_many(connection, topic, [b"2", b"3"], key="k"))
    with pytest.raises(KeyError):
        transaction(database, lambda connection: (outbox.publish(connection, topic, b"never"), {}["rolled back"]))
    assert (stored(database), depth(broker, topic)) == (3, 0)
    relay_all(Relay(outbox.source(), writer))
    assert stored(database) == 0
    assert received(broker, topic, 3) == [b"1", b"2", b"3"]


def test_the_relay_takes_connections_of_an_engine(
    database: Connect, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    outbox = Outbox(engine(database).raw_connection)
    outbox.create_tables()
    store(database, outbox, topic, b"1")
    relay_all(Relay(outbox.source(), writer))
    assert (stored(database), depth(broker, topic)) == (0, 1)


def test_a_message_is_published_at_its_time(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    clock = FakeClock()
    store(database, outbox, topic, b"date", at=datetime.fromtimestamp(clock.wall() + 3600, timezone.utc))
    store(database, outbox, topic, b"seconds", at=clock.wall() + 86400.0)
    store(database, outbox, topic, b"defer", defer=50 * 86400.0)  # counts from now; longer than nsqd's limit
    relay = Relay(outbox.source(), writer, clock=clock)
    for seconds, published in ((3599.0, 0), (1.5, 1), (82798.0, 1), (2.0, 2)):
        assert relay.publish_batch() is False
        clock.advance(seconds)
        relay.publish_batch()
        assert depth(broker, topic) == published
    (due,) = select(database, "SELECT due_at FROM nsq_outbox")
    assert time.time() + 50 * 86400.0 - 60 < due < time.time() + 50 * 86400.0 + 1
    relay.source.close()


def test_a_refused_message_delays_only_later_messages_of_its_key(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    clock = FakeClock()
    store(database, outbox, topic, b"a1", b"a2", key="a")
    store(database, outbox, topic, b"b1", key="b")
    store(database, outbox, topic, b"alone")
    execute(database, 'UPDATE nsq_outbox SET options = \'{"key": 1, "trace_id": 5}\' WHERE id = 1')
    relay = Relay(outbox.source(), writer, clock=clock)
    for failures, pause in enumerate((1.0, 2.0, 4.0), 1):
        while relay.publish_batch():
            pass
        assert select(database, "SELECT failures FROM nsq_outbox ORDER BY id") == [failures, 0]
        assert select(database, "SELECT error FROM nsq_outbox ORDER BY id")[0].startswith("OptionError")
        clock.advance(pause - 0.01)
        assert relay.publish_batch() is False
        assert select(database, "SELECT failures FROM nsq_outbox ORDER BY id") == [failures, 0]
        clock.advance(0.02)
    assert received(broker, topic, 2) == [b"b1", b"alone"]
    execute(database, "UPDATE nsq_outbox SET options = '{}' WHERE id = 1")
    relay_all(relay)
    assert received(broker, topic, 2) == [b"a1", b"a2"]


#: An assignment for each wrong value, and whether PostgreSQL can store it.
EDITS = [
    ("topic = 'bad topic'", True),
    ("topic = x'6f6b'", False),
    ("body = 'text'", False),
    ("body = cast(x'ff' as text)", False),
    ("options = 'not json'", True),
    ("options = '[1, 2]'", True),
    ("options = cast(x'ff' as text)", False),
    ("options = x'7b7d'", False),
    ("options = '{\"evil\": 1}'", True),
    ('options = \'{"defer": "soon"}\'', True),
    ("options = '{\"timeout\": -5}'", True),
    ("ordering_key = x'ff'", False),
    ("due_at = 'soon'", False),
    ("due_at = x'00'", False),
    ("due_at = 'NaN'", True),
]


@pytest.mark.parametrize(("edit", "in_both"), EDITS, ids=[edit for edit, _ in EDITS])
def test_a_row_with_a_wrong_value_stops_no_other_row_and_is_marked(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str, edit: str, in_both: bool
) -> None:
    with closing(database()) as connection:
        if not in_both and not isinstance(connection, sqlite3.Connection):
            pytest.skip("PostgreSQL refuses the value")
    broker.prepare(topic, "ch")
    store(database, outbox, topic, b"1", b"2")
    store(database, outbox, topic, b"edited", b"later", key="k")
    store(database, outbox, topic, b"3", b"4", key="other")
    execute(database, f"UPDATE nsq_outbox SET {edit} WHERE id = 3")
    clock = FakeClock()
    relay = Relay(outbox.source(), writer, clock=clock)
    relay_all(relay)
    held_up = 0 if "ordering_key" in edit or "topic" in edit else 1
    assert depth(broker, topic) == 5 - held_up
    assert select(database, "SELECT failures FROM nsq_outbox WHERE id = 3") == [1]
    (error,) = select(database, "SELECT error FROM nsq_outbox WHERE id = 3")
    assert edit.split(" ")[0].replace("ordering_", "") in error or "evil" in error or "defer" in error or "-5" in error
    with relay.source.begin() as table:
        assert table.backlog(clock.wall())[2] == 1
    relay.source.close()


def test_numbers_of_wrong_types_are_read_as_numbers(database: Connect, outbox: Outbox, writer: Writer) -> None:
    with closing(database()) as connection:
        if not isinstance(connection, sqlite3.Connection):
            pytest.skip("PostgreSQL refuses the values")
    store(database, outbox, "t", b"1")
    execute(database, "UPDATE nsq_outbox SET failures = 'many', publish_at = 'x', id = -5")
    relay_all(Relay(outbox.source(), writer))
    assert stored(database) == 0


def test_a_batch_of_refused_messages_does_not_hide_later_messages(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    store(database, outbox, topic, b"1", b"2", b"3")
    execute(database, "UPDATE nsq_outbox SET topic = 'no good' WHERE id < 3")
    relay_all(Relay(outbox.source(), writer, batch=2))
    assert (stored(database), depth(broker, topic)) == (2, 1)


def test_one_relay_at_a_time_publishes(database: Connect, outbox: Outbox, writer: Writer, topic: str) -> None:
    store(database, outbox, topic, b"1")
    first, second = outbox.source(), Relay(Outbox(lambda: impatient(database)).source(), writer)
    try:
        with first.begin() as table:
            assert table.lock()
            with suppress(sqlite3.OperationalError):  # SQLite: "database is locked"
                assert second.publish_batch() is False
        assert second.publish_batch() is True
    finally:
        first.close()
        second.source.close()


def impatient(database: Connect) -> Any:
    """Return a connection that does not wait long for SQLite's lock."""
    connection = database()
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA busy_timeout = 100")
    return connection


def test_while_no_nsqd_is_reachable_messages_stay(database: Connect, outbox: Outbox, topic: str) -> None:
    store(database, outbox, topic, b"1", b"2")
    with Writer("127.0.0.1:1", publish_timeout=0.2) as writer:
        relay = Relay(outbox.source(), writer)
        with pytest.raises(errors.NSQError):
            relay.publish_batch()
        assert [relay.step(7.0) for _ in range(3)] == [0.5, 1.0, 2.0]
        relay.source.close()
    assert stored(database) == 2
    assert select(database, "SELECT MAX(failures) FROM nsq_outbox") == [0]


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        (("no good", b"x"), {}, errors.InvalidName),
        (("t", "text"), {}, errors.BodyTypeError),
        (("t", b""), {}, errors.InvalidBody),
        (("t", b"x" * 2_000_000), {}, errors.MessageTooLarge),
        (("t", b"x"), {"defr": 1}, TypeError),
        (("t", b"x"), {"key": "k" * 256}, errors.OptionError),
        (("t", b"x"), {"key": "k", "defer": 1.0}, errors.OptionError),
        (("t", b"x"), {"trace_id": object()}, TypeError),
        (("t", b"x"), {"at": "2027-01-01"}, errors.OptionError),
        (("t", b"x"), {"defer": -1.0}, errors.OptionError),
        (("t", b"x"), {"defer": 1.0, "at": 2e9}, errors.OptionError),
    ],
)
def test_a_message_that_nsqd_would_refuse_is_not_stored(
    tmp_path: Path, given: Any, options: Any, error: type[Exception]
) -> None:
    with closing(sqlite3.connect(tmp_path / "x")) as connection:
        outbox = Outbox(lambda: sqlite3.connect(tmp_path / "x"))
        outbox.create_tables()
        with pytest.raises(error):
            outbox.publish(connection, *given, **options)
        assert connection.total_changes == 0


class AutocommitConnection:
    """A connection whose module commits each statement, as sqlite3 of Python 3.12 and psycopg can."""

    autocommit = True

    def __init__(self, connection: Any) -> None:
        self.close = connection.close


def test_a_relay_refuses_connections_with_autocommit(database: Connect) -> None:
    def autocommit() -> Any:
        return AutocommitConnection(database())

    with pytest.raises(errors.OptionError, match="autocommit"):
        Outbox(autocommit).create_tables()


def test_sqlite_connections_that_begin_no_transaction_may_relay(
    tmp_path: Path, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")

    def database() -> Any:
        return sqlite3.connect(tmp_path / "x", isolation_level=None)

    outbox = Outbox(database)
    outbox.create_tables()
    with closing(database()) as connection:
        outbox.publish(connection, topic, b"1")
    source = outbox.source()
    with suppress(KeyError), source.begin() as table:
        table.delete([1])
        raise KeyError
    relay_all(Relay(source, writer))
    assert (stored(database), depth(broker, topic)) == (0, 1)


def test_a_worker_relays_and_knows_the_backlog(
    database: Connect, outbox: Outbox, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    relaying = RelayInWorker(outbox, interval=0.02)
    worker = Worker(nsqd_tcp_addresses=broker.tcp_address, middleware=[relaying])
    worker.handler(topic, "ch")(lambda message: None)
    store(database, outbox, topic, b"1", b"2")
    execute(database, "UPDATE nsq_outbox SET publish_at = publish_at - 60, topic = 'no good' WHERE id = 1")
    worker.start()
    try:
        wait_for(lambda: worker.stats()[0].finished == 1)
        wait_for(lambda: relaying.relays[0].backlog is not None)
        count, age, _ = relaying.relays[0].backlog or (0, 0.0, 0)
        assert count in (1, 2)
        assert 59 < age < 120
    finally:
        worker.close()


def test_relays_store_each_due_time_of_a_schedule_once_by_the_clock_of_the_database(
    database: Connect, outbox: Outbox, writer: Writer, broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    outboxes = [outbox, Outbox(database)]
    for each in outboxes:
        each.every("tick", 1, topic, lambda when: b"%d" % when)
    relays = [Relay(each.source(), writer) for each in outboxes]
    began = time.time()

    def published() -> int:
        for relay in relays:
            relay.step(0.0)
        return depth(broker, topic)

    wait_for(lambda: published() >= 3)
    for relay in relays:
        relay.source.close()
    times = [int(body) for body in received(broker, topic, 3)]
    assert times == [times[0] + number for number in range(len(times))]
    assert began - 1.0 < times[0] < time.time()


APP = """
import sqlite3
from gnsq_lite.contrib.outbox import Outbox
outbox = Outbox(lambda: sqlite3.connect("shop.sqlite3", timeout=60))
outbox.create_tables()
outbox.every("tick", "1h", "ticks", b"x")
other = 5
"""


def test_the_command_lists_schedules_and_removes_those_that_are_not_declared(tmp_path: Path) -> None:
    (tmp_path / "shopdb.py").write_text(APP, encoding="utf-8")

    def database() -> Any:
        return sqlite3.connect(tmp_path / "shop.sqlite3", timeout=60)

    def schedules(*arguments: str, code: int = 0) -> str:
        words = ["-m", "gnsq_lite", "outbox", "schedules", "shopdb", *arguments]
        with running(words, tmp_path, env=programs.environment()) as program:
            assert program.ends() == code, program.output
            return program.output

    assert "tick  last never  no relay has run yet" in schedules()
    for name in ("tick", "old"):
        execute(database, f"INSERT INTO nsq_outbox_schedules VALUES ('{name}', 7200.0)")
    listed = schedules()
    assert "tick  last 1970-01-01 02:00:00  next 1970-01-01 03:00:00" in listed
    assert "old  last 1970-01-01 02:00:00  not declared" in listed
    assert "'tick' is declared by the module" in schedules("--remove", "old", "--remove", "tick", code=2)
    assert "'none' is no schedule of this outbox" in schedules("--remove", "none", code=2)
    assert '[{"name": "tick", "last": 7200.0, "next": 10800.0}]' in schedules("--remove", "old", "--json")


def test_the_command_relays_until_sigterm_and_once(tmp_path: Path, broker: ServerHandle, topic: str) -> None:
    (tmp_path / "shopdb.py").write_text(APP, encoding="utf-8")

    def database() -> Any:
        return sqlite3.connect(tmp_path / "shop.sqlite3", timeout=60)

    outbox = Outbox(database)
    outbox.create_tables()
    store(database, outbox, topic, b"1")
    where = ["--nsqd-tcp-address", broker.tcp_address]
    command = ["-m", "gnsq_lite", "outbox", "relay", "shopdb"]
    with running([*command, *where, "--once"], tmp_path, env=programs.environment()) as program:
        assert program.ends() == 0, program.output
    assert stored(database) == 0
    with running([*command, "--interval", "20ms", *where], tmp_path, env=programs.environment()) as program:
        store(database, outbox, topic, b"2")
        wait_for(lambda: stored(database) == 0, STARTING)
        program.signal(signal.SIGTERM)
        assert program.ends() == 0, program.output
    broker.prepare(topic, "ch")
    assert received(broker, topic, 2) == [b"1", b"2"]
    for target, text in (
        ("shopdb:other", "shopdb:other has the class int, not Outbox"),
        ("shopdb:none", "there is shopdb:outbox"),
    ):
        with running([*command[:-1], target, *where], tmp_path, env=programs.environment()) as program:
            assert program.ends() == 1
            assert text in program.output


FAULTS = """
import os, sqlite3, sys, time
from gnsq_lite import Worker
from gnsq_lite.contrib.inbox import Inbox
from gnsq_lite.contrib.outbox import Outbox

def database():
    if os.environ["SHOP"].endswith(".sqlite3"):
        return sqlite3.connect(os.environ["SHOP"], timeout=60)
    import psycopg
    return psycopg.connect(host=os.environ["SHOP"], user="shop", dbname="shop")

outbox = Outbox(database)
inbox = Inbox(database)
worker = Worker(nsqd_tcp_addresses=os.environ["NSQD"], requeue_delay=0.0, backoff=False, max_attempts=0,
                reconnect_delay=0.1, max_reconnect_delay=0.2, msg_timeout=5.0)

@worker.handler("orders", "ch", concurrency=4)
@inbox.once(key=lambda message: message.body)
def handle(message, connection):
    connection.cursor().execute("INSERT INTO effects VALUES (%d)" % int(message.body))

if __name__ == "__main__":
    connection, first = database(), int(sys.argv[1])
    for number in range(first, first + 100_000):
        connection.cursor().execute("INSERT INTO orders VALUES (%d)" % number)
        outbox.publish(connection, "orders", b"%d" % number)
        if number % 3:
            connection.commit()
        else:
            connection.rollback()
        time.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.nsqd
@pytest.mark.timeout(400)
def test_from_outbox_to_inbox_through_20_faults_each_committed_message_has_its_effect_once(
    database: Connect, outbox: Outbox, tmp_path: Path, real: RealNsqd
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shopapp.py").write_text(FAULTS, encoding="utf-8")
    for table in ("orders", "effects"):
        execute(database, f"CREATE TABLE {table} (number INTEGER)")
    Inbox(database).create_table()
    with closing(database()) as connection:
        is_sqlite = isinstance(connection, sqlite3.Connection)
        where = str(tmp_path / "shop.sqlite3") if is_sqlite else connection.info.host
    env = {**programs.environment(), "SHOP": where, "NSQD": real.tcp_address}
    relay = ["-m", "gnsq_lite", "outbox", "relay", "shopapp", "--interval", "10ms"]
    commands = {
        "relay": [*relay, "--nsqd-tcp-address", real.tcp_address],
        "relay2": [*relay, "--nsqd-tcp-address", real.tcp_address],
        "worker": ["-m", "gnsq_lite", "worker", "shopapp", "--no-supervise"],
        "store": ["shopapp.py"],
    }
    rng = random.Random(20)
    with ExitStack() as stack:
        running_now: dict[str, Program] = {}

        def begin(name: str, number: int) -> None:
            more = [str(number * 100_000)] if name == "store" else []
            arguments = [*commands[name], *more]
            log = f"{name}{number}"
            running_now[name] = stack.enter_context(running(arguments, folder, env=env, name=log))

        for name in commands:
            begin(name, 0)
        for moment in range(1, 21):
            time.sleep(0.5 + 1.5 * rng.random())
            fault = ("relay", "worker", "nsqd", "relay2", "worker", "store")[moment % 6]
            if fault == "nsqd":
                real.stop()
                time.sleep(0.2)
                real.restart()
                continue
            running_now[fault].signal(signal.SIGKILL)
            running_now[fault].ends()
            begin(fault, moment)
        running_now["store"].signal(signal.SIGKILL)
        wait_for(lambda: stored(database) == 0, 100.0)
        wait_for(lambda: not _waiting(real), 100.0)
    committed, effects = (select(database, f"SELECT number FROM {table}") for table in ("orders", "effects"))
    assert len(committed) > 100
    assert sorted(effects) == sorted(committed)
    again = sum("was handled before" in log.read_text() for log in folder.glob("worker*.log"))
    print(f"{len(committed)} committed, {len(effects)} effects, duplicates in {again} workers")


def _waiting(nsqd: RealNsqd) -> int:
    found = nsqd.stats("orders", "ch")
    return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealNsqd]:
    if nsqd_program() is None:
        pytest.skip("no nsqd")
    node = RealNsqd(tmp_path)
    node.prepare("orders", "ch")
    yield node
    node.kill()
