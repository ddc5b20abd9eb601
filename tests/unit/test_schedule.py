"""Scheduled messages, with a fake clock."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gnsq_lite import Worker
from gnsq_lite.errors import NotSent, OptionError
from gnsq_lite.net.waiting import Completion
from gnsq_lite.supervise.election import Election
from gnsq_lite.worker import schedules
from gnsq_lite.worker.intervals import Every, due, parse_every
from gnsq_lite.worker.schedules import Publishing, checked
from tests.fakes import FakeClock
from tests.programs import wait_for


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        (90, 90),
        (1.5, 1.5),
        ("1.5m", 90),
        ("1h30m", 5400),
        ("5", 5),
    ],
)
def test_an_interval_is_a_number_and_a_unit(text: Any, seconds: float) -> None:
    assert parse_every(text) == Every(seconds)


@pytest.mark.parametrize("bad", ["m", "", "-5m", "0s", "0.5s", "400d", "5 weeks", True, 0, float("nan")])
def test_an_invalid_interval_is_refused(bad: Any) -> None:
    with pytest.raises(OptionError, match="every"):
        parse_every(bad)


def test_intervals_are_due_at_their_multiples() -> None:
    every = parse_every("5m")
    assert every.next_after(600.0) == 900.0
    assert every.next_after(899.999) == 900.0
    assert every.next_after(601.0) == 900.0
    assert Every(0.1 + 0.9).next_after(3.0) == 4.0


def test_only_the_latest_missed_time_of_the_last_day_is_due() -> None:
    every = Every(60.0)
    assert due(every, 60.0, 119.0) == (None, 0)
    assert due(every, 60.0, 120.0) == (120.0, 0)
    assert due(every, 60.0, 3605.0) == (3600.0, 58)
    assert due(every, 0.0, 10 * 86400.0 + 5) == (10 * 86400.0, 1439)


def call(run: Callable[[], None]) -> None:
    """Run the function of a new thread at once."""
    run()


class SettableClock(FakeClock):
    """A clock whose wall time can be set."""

    offset = 0.0

    def wall(self) -> float:
        return super().wall() + self.offset


class Nsqd:
    def __init__(self) -> None:
        self.had: list[tuple[str, bytes]] = []
        self.away = False

    def publish(self, topic: str, body: bytes) -> None:
        if self.away:
            raise NotSent("nobody there")
        self.had.append((topic, body))


def test_each_due_time_is_published_once_and_late_after_an_outage_of_nsqd() -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()
    made: list[float] = []

    def body(when: float) -> bytes:
        made.append(when)
        return b"made"

    entries = [checked("5m", "plain", b"x"), checked(60, "made", body)]
    publishing = Publishing(entries, nsqd.publish, Election(), clock, call)
    began = clock.wall()
    publishing.check()
    assert nsqd.had == []
    for _ in range(600):
        clock.advance(0.5)
        publishing.check()
    assert nsqd.had.count(("plain", b"x")) == 1
    assert nsqd.had.count(("made", b"made")) == 5
    assert [when % 60 for when in made] == [0.0] * 5
    assert made[0] - began <= 60
    nsqd.away = True
    clock.advance(300)
    publishing.check()
    assert len(nsqd.had) == 6
    nsqd.away = False
    publishing.check()
    publishing.check()
    assert len(nsqd.had) == 8  # the latest of each


def test_several_functions_for_one_topic_and_interval_are_all_published() -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()
    entries = [checked(60, "t", lambda when: b"one"), checked(60, "t", lambda when: b"two"), checked(60, "t", b"x")]
    publishing = Publishing(entries, nsqd.publish, Election(), clock, call)
    clock.advance(60)
    publishing.check()
    publishing.check()
    assert [body for _, body in nsqd.had] == [b"one", b"two", b"x"]


def test_a_large_body_is_published_once_each_time(tmp_path: Any) -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()
    publishing = Publishing(
        [checked(60, "t", bytes(1 << 20))], nsqd.publish, Election(str(tmp_path / "lock")), clock, call
    )
    clock.advance(60)
    publishing.check()
    publishing.check()
    assert len(nsqd.had) == 1
    assert (tmp_path / "lock").stat().st_size < 1000


def test_a_body_function_that_raises_omits_only_its_due_time() -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()

    def broken(when: float) -> bytes:
        raise ValueError(when)

    publishing = Publishing([checked(60, "b", broken), checked(60, "a", b"x")], nsqd.publish, Election(), clock, call)
    clock.advance(60)
    publishing.check()
    publishing.check()
    assert nsqd.had == [("a", b"x")]


@pytest.mark.parametrize(("interval", "back"), [(300, 60), (60, 60), (1, 60), (60, 3600)])
def test_a_clock_set_back_repeats_no_time_and_delays_the_next_by_one_interval_at_most(
    interval: float, back: float
) -> None:
    clock = SettableClock(0.0)
    times: list[float] = []
    published_at: list[float] = []

    def body(when: float) -> bytes:
        times.append(when)
        published_at.append(clock.now())
        return b"x"

    publishing = Publishing([checked(interval, "t", body)], Nsqd().publish, Election(), clock, call)
    while len(times) < 2:
        clock.advance(0.5)
        publishing.check()
    clock.offset = -back
    while len(times) < 6 + 2 * back / interval:
        clock.advance(0.5)
        publishing.check()
    assert times == [times[0] + interval * number for number in range(len(times))]
    gaps = [later - earlier for earlier, later in itertools.pairwise(published_at)]
    assert max(gaps) <= 2 * interval + 1
    assert all(gap == interval for gap in gaps[-2:]), "due times are on the wall clock again"


def test_a_hanging_publish_delays_no_other_schedule_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()
    threads: list[Callable[[], None]] = []
    entries = [checked(60, "hung", b"x"), checked(60, "other", b"x")]
    publishing = Publishing(entries, nsqd.publish, Election(), clock, threads.append)
    clock.advance(60)
    publishing.check()
    hung, other = threads
    other()
    for _ in range(2):
        clock.advance(60)
        publishing.check()
        threads[-1]()
    assert len(threads) == 4
    assert nsqd.had == [("other", b"x")] * 3
    assert caplog.text.count("to hung has taken 60 s; its later due times wait") == 1
    assert publishing.is_busy()
    hung()
    assert not publishing.is_busy()
    publishing.check()
    threads[-1]()
    publishing.check()
    assert nsqd.had.count(("hung", b"x")) == 2
    assert "to hung 20 s late; 1 earlier due times are omitted" in caplog.text


def test_a_schedule_that_raises_stops_no_other_schedule(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def next_after(self, wall: float) -> float:
            raise ValueError(wall)

    clock, nsqd = FakeClock(0.0), Nsqd()
    publishing = Publishing(
        [checked(Broken(), "b", b"x"), checked(60, "a", b"x")], nsqd.publish, Election(), clock, call
    )
    for _ in range(2):
        clock.advance(60)
        publishing.check()
    assert nsqd.had == [("a", b"x")] * 2
    assert caplog.text.count("to b failed: ") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock_of_a_process_that_ended(tmp_path: Any) -> None:
    holder, other = Election(str(tmp_path / "lock")), Election(str(tmp_path / "lock"))
    assert holder.is_elected()
    runs, ends = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(runs[1], b"x")
        os.read(ends[0], 1)
        os._exit(0)
    try:
        os.read(runs[0], 1)
        assert not other.is_elected()
        holder.resign()
        assert other.is_elected()
    finally:
        os.write(ends[1], b"x")
        os.waitpid(child, 0)
        other.resign()
        for file in (*runs, *ends):
            os.close(file)


def test_one_process_publishes_and_the_next_elected_one_continues(tmp_path: Any) -> None:
    clock, nsqd = FakeClock(0.0), Nsqd()
    path = str(tmp_path / "schedules")
    entries = [checked(60, "t", b"x")]
    elections = [Election(path), Election(path), Election(path)]
    first, second, third = (Publishing(entries, nsqd.publish, each, clock, call) for each in elections)
    for _ in range(3):
        clock.advance(60)
        for each in (first, second, third):
            each.check()
    assert len(nsqd.had) == 3
    assert [each.is_elected() for each in elections] == [True, False, False]
    clock.advance(60)
    first.check()
    elections[0].resign()
    assert [each.is_elected() for each in elections[1:]] == [True, False]
    second.check()  # it was done already
    assert len(nsqd.had) == 4
    clock.advance(60)
    third.check()
    second.check()
    assert len(nsqd.had) == 5
    elections[1].resign()
    (tmp_path / "schedules").write_bytes(b'{"torn')
    clock.advance(60)
    third.check()
    assert len(nsqd.had) == 6
    elections[2].resign()


def test_without_the_supervisors_folder_no_process_is_elected(tmp_path: Any) -> None:
    assert not Election(str(tmp_path / "gone" / "schedules")).is_elected()


@pytest.mark.parametrize(("when", "body"), [(None, b"x"), (object(), b"x"), ("5m", b""), ("5m", "text")])
def test_an_invalid_schedule_or_body_is_refused_at_registration(when: Any, body: Any) -> None:
    with pytest.raises((OptionError, ValueError, TypeError)):
        checked(when, "t", body)


cron = pytest.importorskip("gnsq_lite.contrib.cron")


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def test_cron_is_due_by_the_local_time_of_its_zone() -> None:
    berlin = cron.Cron("0 4 * * 1-5", "Europe/Berlin")
    assert berlin.next_after(at("2026-01-09T04:00", "Europe/Berlin")) == at("2026-01-12T04:00", "Europe/Berlin")
    assert cron.Cron("*/15 * * * *").next_after(at("2026-01-01T00:00")) == at("2026-01-01T00:15")
    assert due(cron.Cron("0 * * * *"), at("2026-01-01T00:30"), at("2026-01-01T03:10")) == (at("2026-01-01T03:00"), 2)


def test_a_nightly_job_runs_once_when_the_clocks_change() -> None:
    nightly = cron.Cron("30 2 * * *", "Europe/Berlin")
    for day in ("2026-03-29", "2026-10-25"):
        when, runs = at(f"{day}T00:00", "Europe/Berlin"), 0
        while (when := nightly.next_after(when)) < at(f"{day}T23:59", "Europe/Berlin"):
            runs += 1
        assert runs == 1, day


CHANGES = {
    "Europe/Berlin": ("2027-03-28", "2027-10-31"),
    "America/New_York": ("2027-03-14", "2027-11-07"),
    "Australia/Lord_Howe": ("2027-04-04", "2027-10-03"),
    "America/Santiago": ("2027-04-04", "2027-09-05"),
}
EXPRESSIONS = ["30 2 * * *", "30 1 * * *", "45 1 * * *", "0 0 * * *", "30 23 * * *", "*/20 2 * * *", "15,45 1-3 * * *"]


@pytest.mark.parametrize("zone", sorted(CHANGES))
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_next_due_time_is_always_later_when_the_clocks_change(zone: str, expression: str) -> None:
    schedule = cron.Cron(expression, zone)
    for day in CHANGES[zone]:
        midnight = at(f"{day}T00:00", zone)
        for minutes in range(-6 * 60, 8 * 60, 5):
            wall = midnight + 60.0 * minutes
            assert wall < schedule.next_after(wall) <= wall + 49 * 3600


def test_a_worker_that_starts_in_the_repeated_hour_does_not_repeat_the_nightly_job() -> None:
    nightly = cron.Cron("30 2 * * *", "Europe/Berlin")
    started = at("2027-10-31T03:00", "Europe/Berlin") - 50 * 60  # 02:10 for the second time
    assert due(nightly, started, started + 7200) == (None, 0)


def test_steps_follow_the_clock_and_lists_are_due_once_when_the_clocks_change() -> None:
    def count(expression: str, day: str) -> int:
        schedule, when, ends = cron.Cron(expression, "Europe/Berlin"), at(day, "Europe/Berlin"), f"{day}T23:59"
        due_times = 0
        while (when := schedule.next_after(when)) < at(ends, "Europe/Berlin"):
            due_times += 1
        return due_times

    days = CHANGES["Europe/Berlin"]
    assert [count("*/20 2 * * *", day) for day in days] == [0, 6]
    assert [count("0,20,40 2 * * *", day) for day in days] == [1, 3]


@pytest.mark.parametrize("wrong", [0.0, -3600.0, float("nan")])
def test_a_schedule_that_returns_no_later_time_publishes_nothing_and_is_logged(
    wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    class Standing:
        def next_after(self, wall: float) -> float:
            return wall + wrong

    clock, nsqd = FakeClock(0.0), Nsqd()
    publishing = Publishing([checked(Standing(), "t", b"x")], nsqd.publish, Election(), clock, call)
    clock.advance(60)
    publishing.check()
    assert nsqd.had == []
    assert "which is not later" in caplog.text


def test_a_process_whose_publish_has_not_ended_stays_elected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(schedules, "_FINISH", 0.0)
    monkeypatch.setattr(schedules, "_CHECK_EVERY", 0.01)
    path, over, goes_on, begun = str(tmp_path / "schedules"), Completion(), threading.Event(), threading.Event()

    def publish(topic: str, body: bytes) -> None:
        begun.set()
        assert goes_on.wait(30)

    election, other = Election(path), Election(path)
    publishing = schedules.start([checked(1.0, "t", b"x")], publish, election, over)
    assert begun.wait(30)
    over.settle()
    wait_for(lambda: "no other process publishes until this process ends" in caplog.text)
    assert not other.is_elected()
    goes_on.set()
    wait_for(lambda: not publishing.is_busy())
    election.resign()
    assert other.is_elected()
    other.resign()


@pytest.mark.parametrize(
    ("expression", "zone"), [("* * *", "UTC"), ("99 * * * *", "UTC"), (None, "UTC"), ("* * * * *", "Mars/Base")]
)
def test_an_invalid_cron_expression_or_timezone_is_refused(expression: Any, zone: str) -> None:
    with pytest.raises(OptionError):
        cron.Cron(expression, zone)


def test_schedules_without_an_nsqd_of_the_worker_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NSQD_TCP_ADDRESSES", "NSQ_LOOKUPD_HTTP_ADDRESSES"):
        monkeypatch.delenv(name, raising=False)
    worker = Worker()
    worker.handler("t", "c", nsqd_tcp_addresses="10.0.0.1:4150")(lambda message: None)
    worker.check()
    worker.every("5m", "ticks", b"x")
    with pytest.raises(OptionError, match="only handlers name nsqds"):
        worker.check()
    worker.configure(nsqd_tcp_addresses="10.0.0.1:4150")
    worker.check()
