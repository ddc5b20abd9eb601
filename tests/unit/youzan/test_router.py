"""Publishes that follow the leaders of their partitions; without a network and without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint, Lookup
from gnsq_lite.publish.publication import Publish
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.lookup import TopicLayout
from tests.fakes import FakeClock

LEADERS = (Endpoint("a", 1, 0), Endpoint("b", 1, 1))


class Lookups:
    """The nsqlookupds of a topic: the last response of each, and which of them fail."""

    def __init__(self) -> None:
        self.said: dict[str, Lookup] = {}
        self.failing: set[str] = set()
        self.polls = 0

    def poke(self) -> None:
        self.polls += 1

    def answers(self) -> list[Lookup]:
        return [lookup for name, lookup in self.said.items() if name not in self.failing]


class Timer:
    """Never due before the test calls it."""

    def __init__(self, act: Callable[[], None], seconds: float = 1.0) -> None:
        self._act, self.closed, self.is_due = act, False, seconds == 0.0

    def act(self) -> None:
        self.close()
        self._act()

    def close(self) -> None:
        self.closed = True


class Host:
    """A Writer whose topic "t" has three partitions, the last of which has no leader; all leaders are connected."""

    def __init__(self, known: bool = True, nsqds: tuple[Endpoint, ...] = (), **options: Any) -> None:
        self.clock, self.lookups, self.nsqds = FakeClock(), Lookups(), nsqds
        self.sent: list[tuple[Endpoint, Publish]] = []
        self.avoided: set[Endpoint] = set()
        self.full: set[Endpoint] = set()
        self.owed: set[int] = set()
        self.timers: list[Timer] = []
        self.router = YouzanDialect(clock=self.clock, **options).router(self, nsqds)
        if known:
            self.router.send(first := self.publish(0))
            self.says("one", *LEADERS)
            self.accept(first)
            assert [endpoint for endpoint, _ in self.sent] == [LEADERS[0]]
            self.sent.clear()

    def send_to(self, endpoint: Endpoint, publish: Any) -> bool:
        if endpoint not in self.full:
            self.sent.append((endpoint, publish))
        return endpoint not in self.full

    def fail(self, publish: Any, error: errors.NSQError) -> None:
        publish.settle(error=error)

    def look_up(self, topic: str, on_lookup: Callable[[Lookup], None], on_outage: Callable[[], None]) -> Any:
        self.learn, self.end_lookups = on_lookup, on_outage
        return None if self.nsqds else self.lookups

    def call_later(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(act, seconds))
        return self.timers[-1]

    def avoids(self, endpoint: Endpoint) -> bool:
        return endpoint in self.avoided

    def owes(self, topic: str, partition: int) -> bool:
        return partition in self.owed

    def says(self, name: str, *leaders: Endpoint, count: int = 3) -> None:
        """An nsqlookupd lists these leaders."""
        partitions = {each.partition: each for each in leaders if each.partition is not None}
        layout = TopicLayout(partition_num=count, partitions=partitions, has_meta=True) if leaders else TopicLayout()
        self.lookups.said[name] = lookup = Lookup(leaders, layout)
        self.learn(lookup)

    def publish(self, partition: Any = None, body: bytes = b"x", key: bytes | None = None, cost: int = 0) -> Publish:
        publish = Publish("t", (body,), 5.0, self.clock.now() + 5.0)
        publish.key, publish.partition, publish.cost = key, partition, cost
        return publish

    def send(self, *publishes: Publish) -> None:
        for publish in publishes:
            self.router.send(publish)

    def accept(self, first: Publish) -> None:
        """The leader accepts a publish, and the loop turns."""
        first.settle()
        for timer in [each for each in self.timers if each.is_due and not each.closed]:
            timer.act()

    def leader_of(self, partition: int) -> Endpoint | None:
        return self.router.leader(self.publish(partition))


@pytest.mark.rule("YZ-4")
def test_a_thread_finds_the_leader_unless_a_publish_to_its_partition_waits() -> None:
    host = Host()
    publish = host.publish(1)
    assert host.router.leader(publish) is LEADERS[1]
    assert publish.data == b"PUB t 1\n\0\0\0\1x"
    assert host.leader_of(2) is None  # which has none
    refused = host.publish(0)
    host.router.put_back([refused], LEADERS[0])
    assert host.leader_of(0) is None
    assert host.leader_of(1) is LEADERS[1]
    host.says("one", *LEADERS)
    assert host.sent == [(LEADERS[0], refused)]
    assert host.leader_of(0) is LEADERS[0]


@pytest.mark.rule("YZ-5")
def test_a_thread_does_not_overtake_publishes_that_are_being_sent() -> None:
    host = Host()
    held = [host.publish(2) for _ in range(3)]
    host.send(*held)
    assert not host.sent
    overtaking: list[Any] = []
    send_to = host.send_to

    def look_too(endpoint: Endpoint, publish: Any) -> bool:
        overtaking.append(host.leader_of(2))
        return send_to(endpoint, publish)

    host.send_to = look_too  # type: ignore[method-assign]
    last = Endpoint("b", 1, 2)
    host.says("one", *LEADERS, last)
    host.accept(held[0])
    assert host.sent == [(last, publish) for publish in held]
    assert overtaking == [None] * 3
    assert host.leader_of(2) is last


@pytest.mark.rule("YZ-5")
def test_publishes_to_one_partition_keep_their_order_after_each_kind_of_retry() -> None:
    host = Host()
    sent = [host.publish(1, b"%d" % number) for number in range(6)]
    first = host.publish(1)
    host.send(first)
    host.accept(first)
    host.send(*sent[:4])
    host.sent.clear()
    host.router.put_back([sent[1]], LEADERS[1])
    host.send(sent[4])
    host.router.put_back([sent[2], sent[3]], LEADERS[1])
    host.send(sent[5])
    moved = Endpoint("c", 1, 1)
    host.owed = {1}  # the first one is unanswered, and may be refused
    host.says("one", LEADERS[0], moved)
    assert host.sent == []
    host.router.put_back([sent[0]], LEADERS[1])
    host.owed = set()
    host.says("one", LEADERS[0], moved)
    assert host.sent == [(moved, sent[0])]
    host.accept(sent[0])
    assert host.sent == [(moved, publish) for publish in sent]


@pytest.mark.rule("YZ-4")
def test_a_turn_that_a_thread_took_and_could_not_use_is_the_loops() -> None:
    host = Host()
    chosen = []
    for _ in range(4):
        publish = host.publish()
        chosen.append(host.router.leader(publish))
        assert host.router.leader(publish) is chosen[-1]
        host.send(publish)
    assert sorted(map(str, chosen)) == sorted(map(str, [*LEADERS] * 2))
    assert [endpoint for endpoint, _ in host.sent] == chosen


@pytest.mark.rule("PUB-4")
@pytest.mark.parametrize("why", ["avoided", "full"])
def test_a_publish_without_a_key_goes_to_a_leader_that_takes_publishes(why: str) -> None:
    host = Host()
    getattr(host, why).add(LEADERS[0])
    publishes = [host.publish() for _ in range(4)]
    host.send(*publishes, bound := host.publish(0))
    assert [endpoint for endpoint, publish in host.sent if publish is not bound] == [LEADERS[1]] * 4
    assert ((LEADERS[0], bound) in host.sent) == (why == "avoided")  # it may go nowhere else
    host.full.clear()
    host.router.on_room(LEADERS[0])
    assert (LEADERS[0], bound) in host.sent


@pytest.mark.rule("DISC-2")
def test_where_nsqlookupds_differ_a_leader_goes_on_that_has_not_refused() -> None:
    host = Host()
    second = (Endpoint("b", 1, 0), Endpoint("a", 1, 1))
    host.says("other", *second)
    assert [host.leader_of(number) for number in (0, 1)] == [*LEADERS]
    host.router.put_back([], LEADERS[0])
    host.says("one", *LEADERS)
    assert [host.leader_of(number) for number in (0, 1)] == [second[0], LEADERS[1]]
    host.router.put_back([], second[0])
    host.says("one", *LEADERS)  # both connections were lost: the last response counts
    assert host.leader_of(0) == LEADERS[0]
    host.lookups.failing.add("one")
    host.says("other", *second)  # no nsqlookupd that works lists the others any more
    assert [host.leader_of(number) for number in (0, 1)] == [*second]


@pytest.mark.rule("DISC-2")
@pytest.mark.rule("DISC-5")
def test_an_nsqlookupd_that_lists_nothing_takes_no_leader_away() -> None:
    host = Host()
    host.says("other")
    assert [host.leader_of(number) for number in (0, 1)] == [*LEADERS]
    host.says("one")
    assert [host.leader_of(number) for number in (0, 1)] == [*LEADERS]
    host.router.put_back([lost := host.publish(1)], LEADERS[1])
    host.says("one")
    assert host.leader_of(1) is None
    assert not lost.done()
    host.says("one", *LEADERS)
    assert host.sent == [(LEADERS[1], lost)]


@pytest.mark.rule("DISC-6")
def test_while_all_nsqlookupds_fail_the_leaders_that_they_listed_last_are_tried_again() -> None:
    host = Host()
    lost = [host.publish(1), host.publish(1)]
    host.send(first := host.publish(1))
    host.accept(first)
    host.send(*lost)
    host.sent.clear()
    host.router.put_back(lost, LEADERS[1])
    host.send(later := host.publish(1))
    assert not host.sent
    host.lookups.failing = {"one", "other"}
    host.end_lookups()
    host.accept(lost[0])
    assert host.sent == [(LEADERS[1], publish) for publish in (*lost, later)]


@pytest.mark.rule("YZ-8")
def test_a_publish_without_a_key_goes_to_another_leader_after_a_refusal() -> None:
    host = Host()
    host.router.put_back([refused := host.publish()], LEADERS[0])
    assert host.sent == [(LEADERS[1], refused)]
    assert {host.router.leader(host.publish()) for _ in range(4)} == {LEADERS[1]}


@pytest.mark.rule("YZ-5")
def test_a_key_waits_until_the_number_of_partitions_is_known_and_follows_it() -> None:
    host = Host(known=False)
    host.send(*(keyed := [host.publish(key=b"%d" % number) for number in range(20)]))
    host.says("one", *LEADERS, count=2)
    for _, first in host.sent[:2]:
        host.accept(first)
    assert {publish for _, publish in host.sent} == {*keyed}
    host.full = {*LEADERS}
    host.sent.clear()
    host.send(*(keyed := [host.publish(key=b"%d" % number) for number in range(20)]))
    host.full = set()
    host.says("one", *LEADERS, Endpoint("a", 1, 2), count=3)  # it has grown
    host.accept(next(publish for endpoint, publish in host.sent if endpoint.partition == 2))
    assert {endpoint.partition for endpoint, _ in host.sent} == {0, 1, 2}
    assert {publish for _, publish in host.sent} == {*keyed}


@pytest.mark.rule("PUB-1")
def test_an_expired_publish_says_what_it_waited_for() -> None:
    host = Host()
    host.send(bound := host.publish(2), known := host.publish(0))
    assert "no leader is known" in str(host.router.unavailable(bound))
    assert host.router.unavailable(known) is None
    not_sent = errors.NotSent("not reached")
    assert isinstance(host.router.not_sent(bound, not_sent), errors.PartitionUnavailable)
    assert host.router.not_sent(host.publish(), not_sent) is not_sent
    empty = Host(known=False)
    empty.send(lost := empty.publish(1))
    assert empty.router.unavailable(lost) is None  # no nsqlookupd has answered
    empty.says("one")
    assert "does the topic exist?" in str(empty.router.unavailable(lost))


@pytest.mark.rule("YZ-9")
def test_a_traced_publish_keeps_its_trace_id_when_it_is_sent_again() -> None:
    host = Host(trace=True)
    host.send(publish := host.publish(1))
    command = publish.data
    assert command.startswith(b"PUB_TRACE t 1\n")
    host.router.put_back([publish], LEADERS[1])
    host.says("one", *LEADERS)
    assert [each.data for _, each in host.sent] == [command] * 2


@pytest.mark.rule("YZ-8")
def test_forty_thousand_held_publishes_cost_neither_a_lookup_nor_another_partition() -> None:
    host = Host()
    host.send(*(held := [host.publish(2) for _ in range(40_000)]))
    took = []
    for _ in range(20):
        began = time.process_time()
        host.says("one", *LEADERS)
        host.send(host.publish(0))
        host.router.forget_done()
        took.append(time.process_time() - began)
    assert min(took) < 0.001
    for publish in held[:-1]:
        publish.settle()
    host.router.forget_done()
    assert host.router.waiting() == held[-1:]


def test_a_topic_is_looked_up_again_as_long_as_a_publish_waits_for_it() -> None:
    host = Host()
    for _ in range(3):
        host.send(host.publish(2))
    for polls in (host.lookups.polls + 1, host.lookups.polls + 2):
        (timer,) = [each for each in host.timers if not each.closed]
        timer.act()
        assert host.lookups.polls == polls
    host.says("one", *LEADERS, Endpoint("b", 1, 2))
    host.accept(host.sent[-1][1])
    (timer,) = [each for each in host.timers if not each.closed]
    timer.act()
    assert all(each.closed for each in host.timers)
    host.router.close()


def test_without_nsqlookupd_an_nsqd_is_sent_the_partition_that_was_named() -> None:
    alone = Endpoint("a", 1)
    host = Host(known=False, nsqds=(alone,))
    host.send(any_ := host.publish(), named := host.publish(2), keyed := host.publish(key=b"k"))
    assert host.sent == [(alone, any_), (Endpoint("a", 1, 2), named)]
    assert (any_.data, named.data) == (b"PUB t\n\0\0\0\1x", b"PUB t 2\n\0\0\0\1x")
    assert isinstance(keyed._error, errors.NotSent)
    assert "number of partitions" in str(keyed._error)


@pytest.mark.rule("YZ-5")
@pytest.mark.parametrize("why", ["new", "refused", "lost"])
def test_a_leader_gets_one_publish_until_it_has_accepted_one(why: str) -> None:
    host, other = Host(), Endpoint("c", 1, 1)
    if why != "new":
        host.send(before := host.publish(1))
        host.accept(before)
        host.send(refused := host.publish(1))
        host.router.put_back([refused] if why == "refused" else [], LEADERS[1])
        refused.settle()
    host.sent.clear()
    host.send(*(publishes := [host.publish(1) for _ in range(5)]))
    host.says("one", LEADERS[0], other) if why != "new" else None
    leader = LEADERS[1] if why == "new" else other
    assert host.sent == [(leader, publishes[0])]
    host.router.on_room(leader)
    host.says("other", LEADERS[0], leader)
    assert len(host.sent) == 1
    host.router.put_back(publishes[:1], leader)  # refused: the next one goes alone, too
    host.says("one", LEADERS[0], Endpoint("d", 1, 1))
    assert [publish for _, publish in host.sent] == [publishes[0]] * 2
    host.fail(publishes[0], errors.PublishTimeout("no answer"))
    host.accept(publishes[0])
    assert [publish for _, publish in host.sent[2:]] == [publishes[1]]
    host.accept(publishes[1])
    assert [publish for _, publish in host.sent[3:]] == publishes[2:]
    host.send(later := host.publish(1), last := host.publish(1))
    assert [publish for _, publish in host.sent[-2:]] == [later, last]


@pytest.mark.rule("YZ-5")
def test_a_publish_without_a_partition_does_not_wait_for_a_first_one() -> None:
    host = Host()
    host.send(*(publishes := [host.publish() for _ in range(4)]))
    assert [publish for _, publish in host.sent] == publishes


@pytest.mark.rule("YZ-5")
@pytest.mark.parametrize("by", ["key", "partition"])
def test_a_publish_nowait_of_a_key_or_partition_is_sent_after_the_outcome_of_the_one_before(by: str) -> None:
    host = Host()
    host.send(first := host.publish(1))
    host.accept(first)  # the leader has accepted a publish, so it gets publishes of several keys at once
    host.sent.clear()
    name: dict[str, Any] = {"key": b"k0"} if by == "key" else {"partition": 1}  # both go to partition 1
    queued = [host.publish(**name, cost=1) for _ in range(4)]
    other, blocking = host.publish(key=b"k1", cost=1), host.publish(**name)
    host.send(*queued[:3], other, blocking, queued[3])
    assert [publish for _, publish in host.sent] == [queued[0], other]
    assert "an earlier publish with the same key" in str(host.router.unavailable(queued[1]))
    assert host.router.waiting() == [queued[1], queued[2], blocking, queued[3]]
    host.router.put_back([queued[0]], LEADERS[1])  # refused; a later one, already sent, could be accepted
    host.says("one", LEADERS[0], moved := Endpoint("c", 1, 1))
    host.accept(queued[0])
    assert [publish for endpoint, publish in host.sent if endpoint == moved] == queued[:2]
    host.fail(queued[2], errors.NotSent("its deadline has passed"))
    host.accept(queued[1])
    host.accept(blocking)
    host.accept(queued[3])
    assert [publish for endpoint, publish in host.sent if endpoint == moved] == [*queued[:2], blocking, queued[3]]
    host.send(last := host.publish(**name, cost=1))
    assert host.sent[-1] == (moved, last)


@pytest.mark.rule("PUB-2")
def test_queued_publishes_whose_deadline_has_passed_are_dropped() -> None:
    host = Host()
    queued = [host.publish(key=b"k0", cost=1) for _ in range(4200)]
    host.send(*queued[:4000])
    for publish in queued[1:4000]:
        publish.settle(error=errors.NotSent("its deadline has passed"))
    host.send(*queued[4000:])
    assert len(host.router.waiting()) < 300
    host.fail(queued[0], errors.PublishTimeout("no answer"))
    host.router.forget_done()
    assert len(host.router.waiting()) == 199
    host.accept(queued[0])
    assert [publish for _, publish in host.sent] == [queued[0], queued[4000]]
