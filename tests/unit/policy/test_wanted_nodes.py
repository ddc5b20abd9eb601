"""Whom to connect to and whom to forget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gnsq_lite.policy.wanted_nodes import Change, Connect, Forget, Health, WantedNodes
from tests.fakes import FakeClock
from tests.profiles import repeats


def make(*, lookupds: tuple[str, ...] = ("L1", "L2")) -> WantedNodes[str]:
    return WantedNodes(lookupds, clock=FakeClock())


@pytest.mark.rule("DISC-1")
@pytest.mark.rule("DISC-2")
def test_the_union_of_all_answers_is_connected_to_each_node_once() -> None:
    producers = make()
    assert producers.answered("L1", ["a", "b", "a"]) == [Connect("a", "L1"), Connect("b", "L1")]
    assert producers.answered("L2", ["b", "c"]) == [Connect("c", "L2")]
    assert producers.finish_round() == []
    assert producers.listed == ("a", "b", "c")


@pytest.mark.rule("DISC-1")
def test_a_nsqlookupd_that_fails_does_not_hide_what_the_others_say() -> None:
    producers = make()
    producers.failed("L1", "refused")
    assert producers.answered("L2", ["a"]) == [Connect("a", "L2")]
    assert producers.finish_round() == []


@pytest.mark.rule("DISC-5")
def test_an_unknown_topic_is_a_good_answer_without_nodes() -> None:
    producers = make(lookupds=("L1",))
    assert producers.answered("L1", []) == []
    assert producers.finish_round() == []
    health = producers.health()["L1"]
    assert (health.ok, health.error, health.last_nodes) == (True, None, ())
    assert producers.answered("L1", ["a"]) == [Connect("a", "L1")]


@pytest.mark.rule("CONN-4")
def test_a_found_node_is_tried_again_only_when_a_later_poll_still_lists_it() -> None:
    producers = make(lookupds=("L1",))
    producers.answered("L1", ["a"])
    producers.finish_round()
    producers.connected("a")
    assert producers.answered("L1", ["a"]) == []
    producers.finish_round()
    assert producers.disconnected("a") == []
    assert producers.answered("L1", ["a"]) == [Connect("a", "L1")]


@pytest.mark.rule("CONN-4")
def test_a_node_is_tried_once_per_poll_however_many_list_it() -> None:
    producers = make()
    assert producers.answered("L1", ["a"]) == [Connect("a", "L1")]
    assert producers.disconnected("a") == []  # refused at once
    assert producers.answered("L2", ["a"]) == []
    assert producers.finish_round() == []
    assert producers.answered("L2", ["a"]) == [Connect("a", "L2")]


@pytest.mark.rule("CONN-4")
def test_a_disconnected_node_that_is_listed_no_more_is_forgotten_once() -> None:
    producers = make(lookupds=("L1",))
    producers.answered("L1", ["a", "b"])
    producers.finish_round()
    producers.connected("a")
    producers.disconnected("a")
    producers.connected("b")
    producers.answered("L1", [])
    assert producers.finish_round() == [Forget("a")]
    assert producers.finish_round() == []


@pytest.mark.rule("CONN-4")
def test_a_connected_node_that_is_listed_no_more_stays_and_is_forgotten_when_it_disconnects() -> None:
    producers = make(lookupds=("L1",))
    producers.answered("L1", ["a"])
    producers.finish_round()
    producers.connected("a")
    producers.answered("L1", [])
    assert producers.finish_round() == []
    assert producers.disconnected("a") == [Forget("a")]
    assert producers.disconnected("a") == []
    assert producers.answered("L1", ["a"]) == [Connect("a", "L1")]


@pytest.mark.rule("CONN-4")
def test_a_node_that_another_nsqlookupd_still_lists_is_not_forgotten() -> None:
    producers = make()
    producers.answered("L1", ["a"])
    producers.answered("L2", ["a"])
    producers.finish_round()
    producers.disconnected("a")
    producers.answered("L1", [])
    producers.failed("L2", "timeout")
    assert producers.finish_round() == []
    producers.answered("L2", [])
    assert producers.finish_round() == [Forget("a")]


@pytest.mark.rule("YZ-1")
def test_what_a_nsqlookupd_said_that_is_dropped_counts_no_longer() -> None:
    producers = make(lookupds=("L1",))
    producers.answered("L1", ["a"])
    producers.answered("L2", ["a", "b", "c"])
    producers.finish_round()
    for key in "ab":
        producers.connected(key)
    producers.disconnected("c")
    producers.failed("L2", "refused")
    producers.answered("L1", ["a"])
    assert producers.finish_round() == []
    producers.dropped("L2")
    producers.dropped("L3")
    assert (producers.listed, list(producers.health())) == (("a",), ["L1"])
    producers.answered("L1", ["a"])
    assert producers.finish_round() == [Forget("c")]
    assert producers.disconnected("b") == [Forget("b")]
    assert producers.answered("L2", ["b"]) == [Connect("b", "L2")]  # it is named again


@pytest.mark.rule("DISC-6")
def test_when_all_fail_connections_stay_and_the_last_known_nodes_are_tried_once_a_round() -> None:
    producers = make()
    producers.answered("L1", ["a", "b"])
    producers.answered("L2", ["b", "c"])
    producers.finish_round()
    for key in "abc":
        producers.connected(key)
    producers.failed("L1", "HTTP 500")
    producers.failed("L2", "not JSON")
    assert producers.finish_round() == []
    assert [producers.disconnected(key) for key in "bc"] == [[], []]
    for _ in range(2):
        producers.failed("L1", "HTTP 500")
        producers.failed("L2", "not JSON")
        assert producers.finish_round() == [Connect("b", "L1"), Connect("c", "L2")]
        assert producers.finish_round() == []  # they are being connected to
        assert [producers.disconnected(key) for key in "bc"] == [[], []]


@pytest.mark.rule("DISC-6")
def test_a_failure_of_some_brings_no_node_back() -> None:
    producers = make()
    producers.answered("L1", ["a"])
    producers.answered("L2", [])
    producers.finish_round()
    producers.disconnected("a")
    producers.failed("L1", "timeout")
    producers.answered("L2", [])
    assert producers.finish_round() == []


@pytest.mark.rule("DISC-6")
def test_each_change_of_state_is_reported_once() -> None:
    producers = make(lookupds=("L1",))
    seen: list[Change] = []
    for error in (None, None, "timeout", "HTTP 500", "timeout", None, None):
        if error:
            producers.failed("L1", error)
        else:
            producers.answered("L1", [])
        producers.finish_round()
        seen += producers.take_changes()
    assert seen == [
        Change("L1", True, None, 0),
        Change("L1", False, "timeout", 2),
        Change("L1", True, None, 3),
    ]
    assert producers.take_changes() == []


@pytest.mark.rule("DISC-6")
def test_health_tells_the_state_its_begin_the_failures_and_the_last_nodes() -> None:
    clock = FakeClock()
    producers = WantedNodes[str](lookupds=["L1"], clock=clock)
    assert producers.health() == {"L1": Health(None, None, None, 0, ())}
    producers.answered("L1", ["a"])
    clock.advance(10)
    failing_since = clock.wall()
    producers.failed("L1", ValueError("not JSON"))
    clock.advance(10)
    producers.failed("L1", ValueError("HTTP 500"))
    assert producers.health() == {"L1": Health(False, "HTTP 500", failing_since, 2, ("a",))}
    producers.answered("L1", [])
    assert producers.health() == {"L1": Health(True, None, clock.wall(), 0, ())}


def test_a_nsqlookupd_that_was_not_configured_counts_too() -> None:
    producers = make(lookupds=())
    assert producers.answered("found later", ["a"]) == [Connect("a", "found later")]
    assert list(producers.health()) == ["found later"]


class Name:
    """A node that counts how often any is compared."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return isinstance(other, Name) and other.number == self.number


@pytest.mark.rule("DISC-6")
def test_very_many_nodes_that_cannot_be_reached_cost_a_look_each() -> None:
    producers: WantedNodes[Name] = WantedNodes(lookupds=("L1", "L2"), clock=FakeClock())
    count = 2_000
    producers.answered("L1", map(Name, range(count)))
    producers.answered("L2", map(Name, range(count)))
    Name.compared = 0
    for number in range(count):
        assert producers.disconnected(Name(number)) == []
    assert Name.compared <= 10 * count
    assert [name.number for name in producers.listed] == list(range(count))


def test_a_node_is_listed_until_the_last_nsqlookupd_leaves_it_out() -> None:
    producers = make()
    for lookupd in ("L1", "L2", "L1"):
        producers.answered(lookupd, ["a", "b"])
    assert producers.disconnected("a") == []
    producers.answered("L1", ["b"])
    assert producers.disconnected("a") == []
    producers.answered("L2", ["b", "a"])
    producers.answered("L2", ["c"])
    assert producers.disconnected("a") == [Forget("a")]
    assert producers.disconnected("b") == []
    assert producers.listed == ("b", "c")


NODES = st.sampled_from("abcde")


class ProducersMachine(RuleBasedStateMachine):
    """The caller does what it is told; a simple model says what must be true then."""

    @initialize()
    def begin(self) -> None:
        self.producers = make()
        self.connected: set[str] = set()
        self.connecting: set[str] = set()
        self.answers: dict[str, list[str]] = {"L1": [], "L2": []}
        self.ever: set[str] = set()

    def obey(self, decisions: list[Any]) -> None:
        for decision in decisions:
            key = decision.key
            if isinstance(decision, Forget):
                assert key in self.ever
                assert key not in self.connected | self.connecting
                assert all(key not in nodes for nodes in self.answers.values())
                self.ever.discard(key)
            else:
                assert key not in self.connected | self.connecting, "a second connection"
                assert key in self.answers[decision.source]
                self.ever.add(key)
                self.connecting.add(key)

    @rule(lookupd=st.sampled_from(["L1", "L2"]), nodes=st.lists(NODES, max_size=4))
    def answer(self, lookupd: str, nodes: list[str]) -> None:
        self.answers[lookupd] = nodes
        self.obey(self.producers.answered(lookupd, nodes))

    @rule(lookupd=st.sampled_from(["L1", "L2"]))
    def fail(self, lookupd: str) -> None:
        self.producers.failed(lookupd, "no")

    @rule(lookupd=st.sampled_from(["L1", "L2"]))
    def drop(self, lookupd: str) -> None:
        self.answers[lookupd] = []
        self.producers.dropped(lookupd)

    @rule()
    def end_of_round(self) -> None:
        self.obey(self.producers.finish_round())

    @rule(key=NODES)
    def connect(self, key: str) -> None:
        if key in self.connecting:
            self.connecting.discard(key)
            self.connected.add(key)
            self.producers.connected(key)

    @rule(key=NODES)
    def lose(self, key: str) -> None:
        if key in self.connecting | self.connected:
            self.connected.discard(key)
            self.connecting.discard(key)
            self.obey(self.producers.disconnected(key))


TestProducersMachine = pytest.mark.rule("CONN-4")(ProducersMachine.TestCase)
TestProducersMachine.settings = settings(max_examples=repeats(80), stateful_step_count=40, derandomize=True)
