"""More connections than RDY (RDY-6): they are asked quickly what they have, and left alone when they have nothing."""

from __future__ import annotations

import random
import statistics

import pytest

from gnsq_lite.policy.asking import Asking
from gnsq_lite.policy.ready_state import ReadyState
from tests.fakes import FakeClock
from tests.profiles import repeats
from tests.unit.policy.fed import Fed
from tests.unit.policy.world import World

IDLE, LOW, SETTLE = 10.0, 30.0, 0.1
#: Seconds that one is asked, and from one question to the next.
MOMENT = IDLE / 20
NEXT = MOMENT + SETTLE

pytestmark = pytest.mark.rule("RDY-6")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Silent:
    """The counts of a connection to which nothing comes."""

    count, received_at = 0, float("-inf")


class Asked(Fed):
    """One RDY for as many connections as there are, and what was sent, with when."""

    def __init__(self, clock: FakeClock, count: int, max_in_flight: int = 1) -> None:
        super().__init__(max_in_flight, clock=clock, rng=random.Random(1), idle_timeout=IDLE, low_ready_timeout=LOW)
        self.given: list[tuple[float, object]] = []
        for key in range(count):
            self.add(key, 2500)
        self.run(SETTLE)
        self.given.clear()

    def run(self, seconds: float) -> None:
        """Let time pass, with all ticks on time."""
        clock: FakeClock = self._clock  # type: ignore[assignment]
        ends = clock.now() + seconds
        while self.next_tick is not None and self.next_tick <= ends:
            clock.advance(max(0.0, self.next_tick - clock.now()))
            self.given += [(clock.now(), change.key) for change in self.tick() if change.count]
        clock.advance(ends - clock.now())

    def holder(self) -> object:
        """Who has the one RDY."""
        (holder,) = (key for key in self.keys if self.ready(key))
        return holder

    def handle(self, key: object) -> None:
        """A message comes and is answered."""
        self.received(key, 1)
        self.answered(key, 1)


def test_all_others_are_asked_when_the_first_was_idle_and_then_it_rests(clock: FakeClock) -> None:
    asked = Asked(clock, 8)
    asked.run(IDLE)
    first = asked.given[0][0]
    asked.run(6 * NEXT + 0.001)
    assert sorted(key for _, key in asked.given) == [1, 2, 3, 4, 5, 6, 7]
    assert [at - first for at, _ in asked.given] == pytest.approx([number * NEXT for number in range(7)])
    assert asked.next_tick == pytest.approx(first + 6 * NEXT + IDLE)  # nor is it looked at meanwhile
    asked.run(IDLE + SETTLE - 0.01)
    assert len(asked.given) == 7
    asked.run(0.01)
    assert len(asked.given) == 8


def test_a_round_that_brought_something_is_followed_by_another_at_once(clock: FakeClock) -> None:
    asked = Asked(clock, 4)
    asked.run(IDLE)
    asked.handle(asked.holder())
    asked.run(6 * NEXT)
    assert len(asked.given) == 6
    asked.run(IDLE - NEXT)  # the second brought nothing
    assert len(asked.given) == 6


def test_who_has_messages_keeps_its_rdy_while_they_come_and_for_a_moment(clock: FakeClock) -> None:
    asked = Asked(clock, 4)
    asked.run(IDLE)
    holder = asked.holder()
    for _ in range(10):
        asked.run(MOMENT - 0.001)
        asked.handle(holder)
    assert asked.holder() == holder
    asked.run(MOMENT - 0.001)
    assert asked.holder() == holder
    asked.run(0.001 + SETTLE)
    assert asked.holder() != holder


def test_who_has_messages_without_end_yields_as_ever(clock: FakeClock) -> None:
    asked = Asked(clock, 4)
    asked.run(IDLE)
    began, holder = clock.now(), asked.holder()
    while asked.ready(holder):
        asked.handle(holder)
        asked.run(MOMENT / 5)
    assert clock.now() - began == pytest.approx(LOW, abs=MOMENT)


def test_a_handler_that_works_is_not_quiet(clock: FakeClock) -> None:
    asked = Asked(clock, 4)
    asked.run(IDLE)
    holder = asked.holder()
    asked.received(holder, 1)
    asked.run(LOW - 1.0)
    assert asked.holder() == holder
    asked.answered(holder, 1)
    asked.run(NEXT)
    assert asked.holder() != holder


def test_where_rdy_rests_a_message_has_all_be_asked_again(clock: FakeClock) -> None:
    asked = Asked(clock, 4)
    asked.run(IDLE + 3 * NEXT)
    rests = asked.holder()
    asked.run(3.0)
    assert asked.holder() == rests
    asked.handle(rests)
    asked.given.clear()
    asked.run(3 * NEXT + SETTLE)
    assert len(asked.given) == 3


def test_no_more_are_quiet_than_are_left_to_be_asked(clock: FakeClock) -> None:
    asking = Asking(MOMENT)
    states = [ReadyState(key, 10, Silent(), counts_down=False, now=clock.now()) for key in range(4)]
    for state in states[:3]:
        state.grow(1, clock.now(), [])
        asking.ask(state)
    clock.advance(MOMENT)
    assert asking.quiet(states[:3], clock.now(), 0) == []
    asking.begin({3})
    assert asking.quiet(states[:3], clock.now(), 0) == [states[0]]
    assert asking.quiet(states[1:3], clock.now(), 1) == []


@pytest.mark.parametrize("max_in_flight", [1, 3, 7])
def test_connections_that_have_nothing_cost_little(clock: FakeClock, max_in_flight: int) -> None:
    asked = Asked(clock, 8, max_in_flight)
    asked.run(100 * IDLE)
    assert len(asked.given) <= 100 * 8


@pytest.mark.rule("BACK-2")
def test_a_probe_that_brings_nothing_goes_round_quickly(clock: FakeClock) -> None:
    asked = Asked(clock, 8, 100)
    asked.pause()
    asked.given += [(clock.now(), change.key) for change in asked.probe() if change.count]
    asked.run(IDLE + 7 * NEXT)
    assert sorted(key for _, key in asked.given) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_messages_now_and_then_wait_for_seconds_and_not_for_turns(max_in_flight: int) -> None:
    waits: list[float] = []
    world = World(max_in_flight, 5, handle=0.01, idle=IDLE, low=LOW, delay=0.001)
    for key in range(8):
        world.add(key)
    rng = random.Random(5)
    for _ in range(repeats(100, 30)):
        world.advance(rng.uniform(1.0, 10.0))
        published, before = world.clock.now(), len(world.delivered)
        world.publish(rng.randrange(8), 1)
        while len(world.delivered) == before:
            world.advance(0.1)
        waits.append(world.delivered[-1][0] - published)
    assert statistics.mean(waits) < IDLE
    assert max(waits) < 2 * IDLE
