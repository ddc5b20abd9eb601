"""When a backlog counts as read."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gnsq_lite.errors import ConnectError
from gnsq_lite.recording.backlog import Backlog, BacklogCutoff
from gnsq_lite.spark.options import SourceOptions, parse
from tests.fakes import FakeClock

SECOND = 10**9


class Collecting:
    def __init__(self, clock: FakeClock) -> None:
        self.backlog_seen = clock.now()
        self.away: list[str] = []
        self.connected = True
        self.held = False

    def check(self) -> None:
        pass

    def is_connected(self) -> bool:
        return self.connected

    def holds_backlog(self) -> bool:
        return self.held

    def missing(self) -> list[str]:
        return self.away

    def not_connected(self, seconds: float) -> ConnectError:
        return ConnectError(", ".join(self.away), f"within {seconds} s")


def made(**more: str) -> tuple[Backlog, Collecting, FakeClock]:
    base = {"topic": "t", "channel": "c", "recording": "/s", "nsqdTCPAddresses": "n", "idleTimeoutMs": "1000"}
    clock = FakeClock()
    collecting = Collecting(clock)
    return (
        Backlog(collecting, parse(SourceOptions, {**base, "connectTimeoutMs": "5000", **more}).recorder(), clock),
        collecting,
        clock,
    )


def test_it_is_read_after_a_silence() -> None:
    backlog, collecting, clock = made()
    assert not backlog.is_read()
    clock.advance(0.9)
    collecting.backlog_seen = clock.now()
    clock.advance(0.9)
    assert not backlog.is_read()
    clock.advance(0.2)
    assert backlog.is_read()


def test_silence_counts_only_while_every_nsqd_is_there() -> None:
    backlog, collecting, clock = made()
    backlog.is_read()
    collecting.away = ["n:4150"]
    clock.advance(4.0)
    assert not backlog.is_read()
    clock.advance(4.0)
    assert not backlog.is_read(), "it is away since the last look"
    collecting.away = []
    assert not backlog.is_read()
    clock.advance(1.0)
    assert backlog.is_read()


def test_a_slow_disk_is_no_silence() -> None:
    backlog, collecting, clock = made()
    backlog.is_read()
    collecting.held = True
    clock.advance(9.0)
    assert not backlog.is_read()
    collecting.held = False
    assert backlog.is_read()


def test_an_nsqd_that_stays_away_is_an_error() -> None:
    backlog, collecting, clock = made()
    collecting.away = ["n:4150"]
    clock.advance(5.0)
    with pytest.raises(ConnectError, match="n:4150"):
        backlog.is_read()


def test_an_nsqd_that_stays_away_is_gone_without_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    backlog, collecting, clock = made(onMissingNsqd="warn")
    collecting.away = ["n:4150"]
    clock.advance(5.0)
    assert not backlog.is_read()
    assert "continuing without these nsqds" in caplog.text
    assert not backlog.is_read()
    clock.advance(1.0)
    assert backlog.is_read()


def test_no_nsqd_at_all_is_an_error_whatever_is_wanted() -> None:
    backlog, collecting, clock = made(onMissingNsqd="warn")
    collecting.away, collecting.connected = ["n:4150"], False
    clock.advance(5.0)
    with pytest.raises(ConnectError):
        backlog.is_read()


def taken(cutoff: BacklogCutoff, messages: Iterable[tuple[float, float]], nsqd: str = "n") -> list[float]:
    """Return the publish times of the messages - (published, came), seconds - that are of the backlog."""
    return [
        published for published, came in messages if cutoff.takes(nsqd, int(published * SECOND), int(came * SECOND))
    ]


def test_what_was_published_before_now_is_the_backlog() -> None:
    cutoff = BacklogCutoff(100 * SECOND)
    old, new = [(90.0, 101.0), (100.0, 101.5)], [(100.5, 102.0), (101.0, 102.1), (101.4, 102.2)]
    assert taken(cutoff, old + new) == [90.0, 100.0]


def test_new_messages_end_no_backlog_that_an_nsqd_ahead_of_this_clock_still_sends() -> None:
    """Its clock is an hour ahead: it sends an hour's messages in a minute, then new ones as they come."""
    cutoff, hour = BacklogCutoff(10_000 * SECOND), 3600.0
    backlog = [(10_000.0 + step, 10_060.0 + step / 60) for step in range(3600)]
    of_it = taken(cutoff, backlog)
    gaps = [after - before for before, after in zip(of_it, [*of_it[1:], 13_600.0], strict=True)]
    assert max(gaps) < 60, "no silence of a second"
    new = [(10_120.0 + step + hour, 10_120.0 + step) for step in range(1000)]
    assert taken(cutoff, new) in ([], [new[0][0]])
    assert taken(cutoff, [(13_599.0 - step, 11_200.0 + step) for step in range(60)]), "what comes late is of it still"
    assert not taken(cutoff, [(10_200.0, 10_200.1)], "another"), "each nsqd has its own clock"


def test_a_backlog_of_a_moment_is_read_to_its_end_though_the_clock_of_its_nsqd_is_ahead() -> None:
    cutoff = BacklogCutoff(10_000 * SECOND)
    backlog = [(13_599.0 + step / 1000, 10_001.0 + step / 100) for step in range(1000)]
    assert len(taken(cutoff, backlog)) == 1000
    new = [(13_620.0 + step, 10_020.0 + step) for step in range(1000)]
    assert len(taken(cutoff, new)) <= 60, "it ends"


def test_a_clock_that_is_a_little_ahead_makes_no_backlog() -> None:
    assert not taken(BacklogCutoff(100 * SECOND), [(101.5 + step, 101.0 + step) for step in range(9)])
