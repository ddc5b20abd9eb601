"""Schedules of an outbox: any number of relays store the message of each due time at most once.

The last due time of each schedule is a row of the table ``NAME_schedules``.  A relay that finds a later due time moves
the row forward and stores the message in one transaction.  The row moves forward only once for each due time.  The time
is the database's, so the clocks of the relays do not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice
from gnsq_lite.worker.intervals import Schedule, as_schedule, next_after

log = logging.getLogger("gnsq_lite.outbox")

#: Seconds for which each passed due time is stored.  Of earlier ones, the latest is, or none.
CAUGHT_UP = 30.0
#: Seconds after which a schedule that failed is tried again.
_RETRY = 5.0
_LONGEST_NAME = 255
#: The time in seconds since 1970, in SQL.
_NOW = {
    "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",  # exact to a millisecond
    "mysql": "UNIX_TIMESTAMP(SYSDATE(6))",
}

#: A body, or a function that returns the body for a due time in seconds since 1970.
Body = bytes | Callable[[float], bytes]
Missed = Literal["latest", "none"]


@dataclass(frozen=True)
class Scheduled:
    """One schedule that the program declares.  ``options`` are keywords of ``Outbox.publish``."""

    name: str
    schedule: Schedule
    topic: str
    body: Body
    missed: Missed
    options: Mapping[str, Any]

    def body_for(self, when: float) -> bytes:
        """Return the body for a due time."""
        return self.body(when) if callable(self.body) else self.body


def declare(declared: list[Scheduled], name: str, when: Any, topic: str, body: Body, missed: str, options: Any) -> None:
    """Add a schedule to *declared*.  Raises OptionError.  The caller has checked topic, body and *options*."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise OptionError("name", name, f"must be a text of 1 to {_LONGEST_NAME} printable characters")
    if any(each.name == name for each in declared):
        raise OptionError("name", name, "is the name of another schedule of this outbox")
    check_choice("missed", missed, "latest", "none")
    chosen: Missed = "latest" if missed == "latest" else "none"
    is_cron = isinstance(when, str) and len(when.split()) > 1
    schedule = import_module("gnsq_lite.contrib.cron").Cron(when) if is_cron else as_schedule(when)
    declared.append(Scheduled(name, schedule, topic, body, chosen, dict(options)))


def due_times(schedule: Schedule, last: float, now: float) -> tuple[list[float], float]:
    """Return the due times after *last* of the last 30 s, the oldest first, and the latest one before, or 0.0.

    A due time before the last 30 s was passed over: no relay ran, or the database was down.
    """
    since = max(last, now - CAUGHT_UP)
    recent, when = list[float](), next_after(schedule, since)
    while when <= now:
        recent.append(when)
        when = next_after(schedule, when)
    return recent, _latest(schedule, last, since) if last < since else 0.0


def _latest(schedule: Schedule, after: float, until: float) -> float:
    """Return the latest due time after *after* and up to *until*, or 0.0.  Looks at later times first."""
    back = CAUGHT_UP
    while (when := next_after(schedule, max(after, until - back))) > until and until - back > after:
        back *= 2.0
    found = 0.0
    while when <= until:
        found, when = when, next_after(schedule, when)
    return found


class ScheduleTable:
    """The table of last due times, within a transaction.

    Args:
        mark: Placeholder of a parameter in SQL.
        vendor: "postgresql", "sqlite" or "mysql".
    """

    def __init__(self, name: str, cursor: Any, mark: str, vendor: str) -> None:
        self._name, self._cursor, self._mark, self._vendor = name, cursor, mark, vendor

    def create(self) -> None:
        """Create the table unless it exists."""
        columns = "name VARCHAR(255) PRIMARY KEY, last DOUBLE PRECISION NOT NULL"
        self._cursor.execute(f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})")

    def read(self) -> tuple[float, dict[str, float]]:
        """Return the database's time in seconds since 1970, and the last due time of each schedule."""
        self._cursor.execute(f"SELECT {_NOW[self._vendor]}")
        now = float(self._cursor.fetchone()[0])
        self._cursor.execute(f"SELECT name, last FROM {self._name}")
        return now, {name: float(last) for name, last in self._cursor.fetchall()}

    def add(self, name: str, last: float) -> None:
        """Add a schedule whose first due time is after *last*, unless the schedule exists."""
        insert, otherwise = ("INSERT IGNORE", "") if self._vendor == "mysql" else ("INSERT", "ON CONFLICT DO NOTHING")
        values = f"VALUES ({self._mark}, {self._mark}) {otherwise}"
        self._cursor.execute(f"{insert} INTO {self._name} (name, last) {values}", (name, last))

    def move(self, name: str, when: float) -> bool:
        """Move a schedule forward to the due time *when*.  Return False if it is there already."""
        where = f"WHERE name = {self._mark} AND last < {self._mark}"
        self._cursor.execute(f"UPDATE {self._name} SET last = {self._mark} {where}", (when, name, when))
        return bool(self._cursor.rowcount == 1)

    def remove(self, name: str) -> None:
        """Remove a schedule."""
        self._cursor.execute(f"DELETE FROM {self._name} WHERE name = {self._mark}", (name,))


def next_due(declared: Sequence[Scheduled], last: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return (name, last due time, next due time) of each row and declared schedule, sorted by name.

    The last due time is 0.0 before a relay has seen the schedule, and the next one if no schedule of the name is
    declared.
    """
    schedules = {each.name: each.schedule for each in declared}
    found = []
    for name in sorted({*schedules, *last}):
        at = last.get(name, 0.0)
        found.append((name, at, next_after(schedules[name], at) if name in schedules and at else 0.0))
    return found


class StoringTable(Protocol):
    """The part of an outbox's table, within a transaction, that a :class:`Scheduler` uses."""

    def schedules(self) -> ScheduleTable: ...

    def store(self, topic: str, body: bytes, **options: Any) -> None: ...


class Scheduler:
    """Stores the messages of *declared* schedules when they are due, in transactions that *begin* makes."""

    def __init__(
        self,
        declared: Sequence[Scheduled],
        begin: Callable[[], AbstractContextManager[StoringTable]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._declared, self._begin, self._clock = declared, begin, clock
        #: For each schedule that failed, and "" for the table: the time of the next attempt.
        self._failed: dict[str, float] = {}

    def step(self) -> None:
        """Store the messages of all due times.  Log errors.  If one schedule fails, store those of the others."""
        if not self._declared or self._waits(""):
            return
        try:
            with self._begin() as table:
                now, last = table.schedules().read()
        except Exception as error:  # each database driver has its own exception classes
            self._log("", "cannot read the schedules of the outbox; trying again: %s: %s", error)
            return
        self._failed.pop("", None)
        for each in self._declared:
            if self._waits(each.name):
                continue
            try:
                self._store(each, now, last.get(each.name))
            except Exception as error:  # of the database, of the user's body, or of the user's next_after()
                self._log(each.name, "cannot store the message of schedule %r; trying again: %s: %s", error, each.name)
            else:
                self._failed.pop(each.name, None)

    def _store(self, each: Scheduled, now: float, last: float | None) -> None:
        if last is None:
            with self._begin() as table:
                table.schedules().add(each.name, now)
            return
        times, passed = due_times(each.schedule, last, now)
        if passed and each.missed == "latest" and not times:
            times = [passed]
        if not (times or passed):
            return
        is_first = False
        with self._begin() as table:
            schedules = table.schedules()
            if passed and passed not in times:
                is_first = schedules.move(each.name, passed)
            for when in times:
                if schedules.move(each.name, when):
                    is_first = is_first or when == passed
                    table.store(each.topic, each.body_for(when), **each.options)
        if is_first:
            text = "schedule %r: due times until %.0f (seconds since 1970) passed while no relay ran; %s"
            log.warning(text, each.name, passed, "the latest was stored" if passed in times else "they are omitted")

    def _waits(self, name: str) -> bool:
        return self._clock.now() < self._failed.get(name, 0.0)

    def _log(self, name: str, text: str, error: Exception, *more: object) -> None:
        level = logging.DEBUG if name in self._failed else logging.ERROR
        self._failed[name] = self._clock.now() + _RETRY
        log.log(level, text, *more, type(error).__name__, error)
