"""When a backlog counts as read."""

from __future__ import annotations

import pytest

from gnsq_lite.errors import ConnectError
from gnsq_lite.spark.backlog import Backlog
from gnsq_lite.spark.options import SourceOptions, parse
from tests.fakes import FakeClock


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
    base = {"topic": "t", "channel": "c", "spoolDir": "/s", "nsqdTCPAddresses": "n", "idleTimeoutMs": "1000"}
    clock = FakeClock()
    collecting = Collecting(clock)
    return (
        Backlog(collecting, parse(SourceOptions, {**base, "connectTimeoutMs": "5000", **more}), clock),
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
    assert "going on without it" in caplog.text
    assert not backlog.is_read()
    clock.advance(1.0)
    assert backlog.is_read()


def test_no_nsqd_at_all_is_an_error_whatever_is_wanted() -> None:
    backlog, collecting, clock = made(onMissingNsqd="warn")
    collecting.away, collecting.connected = ["n:4150"], False
    clock.advance(5.0)
    with pytest.raises(ConnectError):
        backlog.is_read()
