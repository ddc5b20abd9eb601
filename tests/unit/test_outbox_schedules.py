"""Relays store the message of each due time of an outbox's schedules once, also after failures."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.contrib.outbox_schedules import Scheduler, ScheduleTable, due_times, next_due
from gnsq_lite.worker.intervals import Every
from tests.fakes import FakeClock


class Shop:
    """An outbox in a file of SQLite, whose database has a clock that the test sets."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.now, self.opened = path, 1_000_000.0, list[sqlite3.Connection]()
        read = ScheduleTable.read

        def read_at(table: ScheduleTable) -> tuple[float, dict[str, float]]:
            return self.now, read(table)[1]

        monkeypatch.setattr(ScheduleTable, "read", read_at)
        self.outbox().create_tables()

    def connect(self) -> sqlite3.Connection:
        self.opened.append(sqlite3.connect(self.path, timeout=30.0, check_same_thread=False))
        return self.opened[-1]

    def outbox(self) -> Outbox:
        return Outbox(self.connect)

    def stored(self) -> list[tuple[str, bytes]]:
        with closing(self.connect()) as connection:
            return list(connection.execute("SELECT topic, body FROM nsq_outbox ORDER BY id"))

    def bodies(self) -> list[int]:
        return [int(body) for _, body in self.stored()]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop", monkeypatch)
    yield made
    for connection in made.opened:  # a Scheduler keeps its connection open; Python 3.13 warns of an unclosed one
        connection.close()


def scheduler(outbox: Outbox, clock: FakeClock | None = None) -> Scheduler:
    source = outbox.source()
    return Scheduler(source.schedules, source.begin, clock or FakeClock())


def told(when: float) -> bytes:
    return b"%d" % when


def test_each_due_time_is_stored_once_however_many_relays_run(shop: Shop) -> None:
    def run() -> None:
        outbox = shop.outbox()
        outbox.every("ten", 10, "ticks", told)
        steps = scheduler(outbox)
        for _ in range(12):
            turn.wait(20.0)
            steps.step()

    def advance() -> None:
        shop.now += 3.0

    turn = threading.Barrier(3, advance)
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.bodies() == [1_000_010, 1_000_020, 1_000_030]


def test_due_times_of_the_last_30_s_are_all_stored_oldest_first(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    outbox = shop.outbox()
    outbox.every("ten", 10, "ticks", told)
    scheduler(outbox).step()
    shop.now += 29.0
    scheduler(outbox).step()  # another process took over
    assert shop.bodies() == [1_000_010, 1_000_020]
    assert "passed while no relay ran" not in caplog.text


@pytest.mark.parametrize("missed", ["latest", "none"])
def test_after_a_longer_outage_the_latest_due_time_is_stored_or_none(
    shop: Shop, missed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = shop.outbox()
    outbox.every("hourly", 3600, "ticks", told, missed=missed)
    scheduler(outbox).step()
    shop.now += 10 * 3600.0
    steps = scheduler(outbox)
    for _ in range(3):
        steps.step()
    assert shop.bodies() == ([1_033_200] if missed == "latest" else [])
    assert caplog.text.count("passed while no relay ran") == 1
    shop.now = 1_036_800.0 + 1.0
    steps.step()
    assert shop.bodies()[-1] == 1_036_800


def test_after_a_longer_outage_a_short_interval_has_its_last_30_s(shop: Shop) -> None:
    outbox = shop.outbox()
    outbox.every("ten", 10, "ticks", told)
    scheduler(outbox).step()
    shop.now += 86400.0 * 300
    scheduler(outbox).step()
    assert shop.bodies() == [shop.now - 20, shop.now - 10, shop.now]


def test_a_body_that_raises_stores_nothing_is_tried_again_and_stops_no_other_schedule(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, clock, broken = shop.outbox(), FakeClock(), [True]

    def body(when: float) -> bytes:
        if broken:
            raise RuntimeError("no data yet")
        return told(when)

    outbox.every("bad", 10, "reports", body)
    outbox.every("good", 10, "ticks", told)
    steps = scheduler(outbox, clock)
    steps.step()
    shop.now += 10.0
    for _ in range(20):
        steps.step()
        clock.advance(0.5)
    assert shop.stored() == [("ticks", b"1000010")]
    logged = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [each.getMessage() for each in logged] == [
        "cannot store the message of schedule 'bad'; trying again: RuntimeError: no data yet"
    ]
    broken.clear()
    clock.advance(5.0)
    steps.step()
    assert shop.stored()[1:] == [("reports", b"1000010")]


def test_without_its_table_the_schedules_wait_and_that_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, clock = shop.outbox(), FakeClock()
    outbox.every("ten", 10, "ticks", told)
    with closing(shop.connect()) as connection:
        connection.execute("DROP TABLE nsq_outbox_schedules")
        connection.commit()
    steps = scheduler(outbox, clock)
    for _ in range(20):
        steps.step()
        clock.advance(1.0)
    assert [each.levelname for each in caplog.records].count("ERROR") == 1
    outbox.create_tables()
    steps.step()
    shop.now += 10.0
    clock.advance(10.0)
    steps.step()
    assert shop.bodies() == [1_000_010]


def test_a_new_version_with_another_interval_stores_no_due_time_twice(shop: Shop) -> None:
    old, new = shop.outbox(), shop.outbox()
    old.every("report", 10, "ticks", told)
    new.every("report", 20, "ticks", told)
    relays = scheduler(old), scheduler(new)
    for _ in range(9):
        for each in relays:
            each.step()
        shop.now += 5.0
    assert shop.bodies() == [1_000_010, 1_000_020, 1_000_030, 1_000_040]


def test_a_clock_of_the_database_that_is_set_back_stores_nothing_twice(shop: Shop) -> None:
    outbox = shop.outbox()
    outbox.every("ten", 10, "ticks", told)
    steps = scheduler(outbox)
    for now in (0.0, 10.0, 20.0, 5.0, 11.0, 21.0, 30.0):
        shop.now = 1_000_000.0 + now
        steps.step()
    assert shop.bodies() == [1_000_010, 1_000_020, 1_000_030]


def test_the_next_due_time_is_known_of_declared_schedules_that_a_relay_has_seen(shop: Shop) -> None:
    outbox = shop.outbox()
    outbox.every("b", 10, "ticks", told)
    outbox.every("c", 10, "ticks", told)
    assert next_due(outbox.schedules, {"a": 5.0, "b": 25.0}) == [("a", 5.0, 0.0), ("b", 25.0, 30.0), ("c", 0.0, 0.0)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("", 10, "t", b"x"), "name"),
        (("n" * 256, 10, "t", b"x"), "name"),
        (("a\nb", 10, "t", b"x"), "name"),
        (("twice", 10, "t", b"x"), "another schedule"),
        (("n", "often", "t", b"x"), "every"),
        (("n", 0.5, "t", b"x"), "every"),
        (("n", 10, "bad topic", b"x"), "topic"),
        (("n", 10, "t", b""), "body"),
    ],
)
def test_a_wrong_schedule_is_refused_when_it_is_declared(shop: Shop, arguments: Any, why: str) -> None:
    outbox = shop.outbox()
    outbox.every("twice", 10, "t", b"x")
    with pytest.raises(errors.NSQError, match=why):
        outbox.every(*arguments)
    assert len(outbox.schedules) == 1


@pytest.mark.parametrize("options", [{"missed": "all"}, {"at": 5.0}, {"key": "k", "defer": 1.0}])
def test_wrong_options_are_refused_when_a_schedule_is_declared(shop: Shop, options: Any) -> None:
    with pytest.raises(errors.OptionError):
        shop.outbox().every("n", 10, "t", b"x", **options)


def test_a_text_of_five_fields_is_a_cron_expression(shop: Shop) -> None:
    pytest.importorskip("cronsim")
    outbox = shop.outbox()
    outbox.every("nightly", "0 4 * * *", "reports", b"x")
    assert outbox.schedules[0].schedule.next_after(0.0) == 4 * 3600.0
    with pytest.raises(errors.OptionError, match="cron"):
        outbox.every("wrong", "61 4 * * *", "reports", b"x")


@pytest.mark.parametrize("interval", [1.0, 7.0, 3600.0, 86400.0])
@pytest.mark.parametrize("outage", [0.5, 29.0, 31.0, 5000.0, 86400.0 * 400])
def test_the_due_times_are_those_that_a_plain_loop_finds(interval: float, outage: float) -> None:
    schedule, last = Every(interval), 1_000_000.0 // interval * interval
    now = last + outage
    recent, older = due_times(schedule, last, now)
    first = int(last // interval) + 1
    every = _up_to(first, interval, now)
    assert recent == [when for when in every if when > now - 30.0]
    assert older == max((when for when in every if when <= now - 30.0), default=0.0)


def _up_to(first: int, interval: float, now: float) -> list[float]:
    """Return the due times of the last 3 intervals and 40 s."""
    start = max(first, int((now - 40.0 - 3 * interval) // interval))
    found, number = [], start
    while number * interval <= now:
        found.append(number * interval)
        number += 1
    return found
