"""A Reader's flow control.  The tests use no network and do not wait."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Reader
from gnsq_lite.consume.flow_control import FlowControl
from gnsq_lite.dialect import Endpoint
from tests.fakes import FakeClock

NSQD = Endpoint("nsqd", 4150)


class Connection:
    """A connection that records its shares of RDY."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.max_rdy_count = endpoint, 2500
        self.in_flight, self.received_at = 0, 0.0
        self.succeeded = 0
        self.sent: list[int] = []

    def set_ready(self, count: int) -> None:
        self.sent.append(count)


class Shares:
    """A Reader's flow control and its connections."""

    def __init__(self, *endpoints: Endpoint, **options: Any) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        reader = Reader("t", "c", print, nsqd_tcp_addresses="nsqd:4150", **{"max_in_flight": 10, **options})
        self.flow = FlowControl(reader._settings, self.clock, random.Random(1), self.pauses.append)
        self.connections = [Connection(endpoint) for endpoint in endpoints or (NSQD,)]
        for connection in self.connections:
            self.flow.joined(connection)
        self.tick(0.1)
        self.connection = self.connections[0]
        self.sent = self.connection.sent

    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.flow._tick(lambda now: True)

    def last(self) -> list[int]:
        return [connection.sent[-1] for connection in self.connections]


@pytest.mark.rule("RDY-1")
def test_messages_are_not_reported_if_they_cannot_change_a_rdy() -> None:
    shares = Shares()
    assert shares.sent == [1, 10]
    assert not shares.flow.watches


def test_messages_are_reported_if_the_rate_is_limited() -> None:
    assert Shares(rate_limit="1000/s").flow.watches


@pytest.mark.rule("BACK-2")
def test_successes_are_reported_until_backoff_is_over() -> None:
    shares = Shares()
    shares.flow.failed(shares.connection, 0)
    assert shares.flow.watches
    shares.tick(1000.0)
    assert shares.sent == [1, 10, 0, 1]
    shares.flow.answered(shares.connection, 1, success=True)
    assert shares.sent == [1, 10, 0, 1, 10]
    shares.tick(1.0)
    assert not shares.flow.watches


@pytest.mark.rule("MSG-5")
def test_rdy_falls_to_the_number_of_running_handlers_and_doubles_while_a_handler_is_free() -> None:
    shares = Shares()
    shares.tick(1.0)
    shares.flow.lower_limit(shares.connection, 5, 2)
    shares.tick(0.5)
    shares.flow.lower_limit(shares.connection, 1, 0)
    for _ in range(3):
        shares.clock.advance(1.0)
        shares.flow._tick(lambda now: False)  # no handler is free
    assert shares.sent == [1, 10, 2, 0]
    for _ in range(10):
        shares.tick(1.0)
    assert shares.sent == [1, 10, 2, 0, 1, 2, 4, 8, 10]


@pytest.mark.rule("MSG-5")
def test_checks_run_once_a_second_however_often_the_greenlet_wakes() -> None:
    shares, looks = Shares(), list[float]()

    def look(now: float) -> bool:
        looks.append(now)
        return True

    for _ in range(30):
        shares.clock.advance(0.1)
        shares.flow._tick(look)
    assert [round(after - before, 3) for before, after in itertools.pairwise(looks)] == [1.0] * (len(looks) - 1)
    assert len(looks) == 3


def partitions(*numbers: int) -> list[Endpoint]:
    return [Endpoint("nsqd", 4150, number) for number in numbers]


@pytest.mark.rule("BACK-1")
@pytest.mark.rule("BACK-2")
@pytest.mark.rule("BACK-4")
def test_a_failure_pauses_its_partition_and_the_other_partitions_get_its_rdy() -> None:
    shares = Shares(*partitions(0, 1, 2, 3), max_in_flight=8)
    assert shares.last() == [2, 2, 2, 2]
    failing = shares.connections[0]
    shares.flow.failed(failing, 0)
    shares.tick(0.1)
    assert shares.last() == [0, 3, 3, 2]
    shares.flow.answered(shares.connections[1], 1, success=True)  # a success of another partition does not count
    shares.tick(0.8)
    assert (failing.sent[-1], shares.flow.backoffs[0].level) == (0, 1)
    shares.tick(0.1)
    shares.tick(0.1)
    assert shares.last()[0] == 1
    shares.flow.failed(failing, 0)  # the probe
    assert (failing.sent[-1], shares.flow.backoffs[0].left()) == (0, 2.0)
    for _ in range(2):
        shares.tick(3.0)
        shares.tick(0.1)
        assert failing.sent[-1] == 1
        shares.flow.answered(failing, 1, success=True)
    shares.tick(0.1)
    assert shares.last() == [2, 2, 2, 2]
    assert shares.pauses == [1.0, 2.0, 1.0, 0.0]
    assert not shares.flow.watches


@pytest.mark.rule("BACK-3")
def test_a_paused_partition_stays_paused_after_its_leader_moves() -> None:
    shares = Shares(*partitions(0, 1))
    shares.flow.failed(shares.connection, 0)
    shares.flow.parted(shares.connection)
    moved = Connection(Endpoint("other", 4150, 0))
    shares.flow.joined(moved)
    shares.tick(0.5)
    assert moved.sent == []
    shares.tick(0.5)
    shares.tick(0.1)
    assert moved.sent == [1]


def test_flow_control_ignores_the_close_of_an_unknown_connection() -> None:
    shares = Shares()
    shares.flow.parted(Connection(Endpoint("other", 4150)))
    shares.tick(1.0)
    assert shares.last() == [10]


@pytest.mark.rule("BACK-1")
def test_without_partitions_a_failure_pauses_all_connections() -> None:
    shares = Shares(NSQD, Endpoint("other", 4150))
    shares.flow.failed(shares.connection, 0)
    assert shares.last() == [0, 0]


@pytest.mark.rule("BACK-1")
def test_a_failure_ratio_counts_the_successes_of_open_and_closed_connections() -> None:
    shares = Shares(NSQD, Endpoint("other", 4150), backoff=BackoffOptions(failure_ratio=0.5))
    first, second = shares.connections
    first.succeeded = second.succeeded = 5
    assert shares.flow.successes(first) == 10
    shares.flow.parted(second)
    assert shares.flow.successes(first) == 10
    for _ in range(9):
        shares.flow.failed(first, 10)
    assert not shares.flow.backoffs[None].level
    shares.flow.failed(first, 10)
    assert shares.flow.backoffs[None].level
