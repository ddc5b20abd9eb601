"""When a Reader's flow control wants to be told of what comes and goes; without a network and without waiting."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Reader
from gnsq_lite.consume.flow_control import FlowControl
from gnsq_lite.dialect import Endpoint
from gnsq_lite.wire.identify import Negotiated
from tests.fakes import FakeClock

NSQD = Endpoint("nsqd", 4150)


class Bench:
    """One connection, of which the flow control knows what it counts."""

    def __init__(self, negotiated: bool = True, **options: Any) -> None:
        self.clock = FakeClock()
        reader = Reader("t", "c", print, nsqd_tcp_addresses="nsqd:4150", max_in_flight=10, **options)
        self.sent: list[int] = []
        self.successes = 0
        self.flow = FlowControl(
            reader._settings,
            self.clock,
            random.Random(1),
            self.send,
            lambda pause: None,
            lambda: self.successes,
        )
        counts = SimpleNamespace(count=0, received_at=0.0)
        self.connection: Any = SimpleNamespace(
            endpoint=NSQD,
            address="nsqd:4150",
            in_flight=counts,
            msg_timeout=60.0,
            negotiated=Negotiated(negotiated=negotiated, max_rdy_count=2500),
        )
        self.flow.joined(self.connection)
        self.tick(0.1)

    def send(self, endpoint: Endpoint, count: int) -> None:
        self.sent.append(count)

    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.flow._tick(lambda now: True)


@pytest.mark.rule("RDY-1")
def test_it_need_not_be_told_where_nothing_follows_from_what_comes() -> None:
    bench = Bench()
    assert bench.sent == [1, 10]
    assert not bench.flow.watches


def test_it_is_told_where_the_rate_is_limited_or_the_server_counts_rdy_down() -> None:
    assert Bench(rate_limit="1000/s").flow.watches
    assert Bench(negotiated=False).flow.watches


@pytest.mark.rule("BACK-2")
def test_it_is_told_of_successes_until_backoff_is_over() -> None:
    bench = Bench()
    bench.flow.failed(0)
    assert bench.flow.watches
    bench.tick(1000.0)
    assert bench.sent == [1, 10, 0, 1]
    bench.flow.answered(NSQD, 1, 0, success=True)
    assert bench.sent == [1, 10, 0, 1, 10]
    bench.tick(1.0)
    assert not bench.flow.watches


@pytest.mark.rule("MSG-5")
def test_rdy_goes_down_to_the_running_handlers_and_doubles_while_one_is_free() -> None:
    bench = Bench()
    bench.tick(1.0)
    bench.flow.stalled(NSQD, 5, 2)
    bench.tick(0.5)
    bench.flow.stalled(NSQD, 1, 0)
    for _ in range(3):
        bench.clock.advance(1.0)
        bench.flow._tick(lambda now: False)  # no handler is free
    assert bench.sent == [1, 10, 2, 0]
    for _ in range(10):
        bench.tick(1.0)
    assert bench.sent == [1, 10, 2, 0, 1, 2, 4, 8, 10]


@pytest.mark.rule("MSG-5")
def test_it_looks_around_once_a_second_however_often_it_is_woken() -> None:
    bench, looks = Bench(), list[float]()

    def look(now: float) -> bool:
        looks.append(now)
        return True

    for _ in range(30):
        bench.clock.advance(0.1)
        bench.flow._tick(look)
    assert [round(after - before, 3) for before, after in itertools.pairwise(looks)] == [1.0] * (len(looks) - 1)
    assert len(looks) == 3
