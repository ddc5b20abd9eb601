"""Following a partition's leader; without a network and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint, Lookup, PublishRequest
from gnsq_lite.net.loop import loop_here
from gnsq_lite.options import ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.policy.leaders import Leaders
from gnsq_lite.policy.wanted_nodes import Health
from gnsq_lite.publish.core import WriterCore
from gnsq_lite.publish.partition_leaders import Topic, lightest
from gnsq_lite.publish.publication import Publish
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.lookup import TopicLayout
from tests.fakes import FakeClock


class NoDiscovery:
    """Stands in for the discovery of a topic: nobody answers."""

    def poke(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def health(self) -> dict[str, Health[Endpoint]]:
        return {"127.0.0.1:1": Health(False, "refused", 0.0, 1, ())}


def routed_core(clock: FakeClock) -> tuple[Any, Topic]:
    """Return a Writer's core and its topic "t", whose route nobody has told yet."""
    settings = ProducerSettings(
        dialect=YouzanDialect(),
        endpoints=(),
        lookupds=("127.0.0.1:1",),
        connection=ConnectionOptions(),
        reconnect=WriterReconnectOptions(),
        lookup=LookupOptions(),
        max_body_size=5_000_000,
        max_pending=1_000_000,
        coalesce=False,
    )
    core: Any = WriterCore(loop_here(), settings, clock)
    topic = core.leaders._topics["t"] = Topic("t")
    topic.discovery = NoDiscovery()
    return core, topic


@pytest.mark.rule("YZ-8")
def test_the_deadline_alone_limits_how_long_a_leader_is_followed() -> None:
    clock = FakeClock()
    core, topic = routed_core(clock)
    publication = Publish(core.loop, "t", (b"x",), 86_400.0, clock.now() + 86_400.0)
    publication.request = PublishRequest(topic="t", bodies=(b"x",), key=b"k")
    core.submit(publication)
    try:
        for _ in range(5_000):
            topic.waiting.clear()
            core.leaders.retry(publication, errors.NotLeaderError("E_FAILED_ON_NOT_LEADER"), LEADERS[0])
            assert publication.again_at - clock.now() <= 2.0
            clock.advance(2.0)
        assert not publication.done()
        clock.advance(86_400.0)
        core.outcomes.expire()
        with pytest.raises(errors.NotLeaderError):
            publication.result(0)
    finally:
        core.leaders.close()
        core.outcomes.stop()


@pytest.mark.rule("PUB-1")
def test_a_publish_whose_topic_nobody_knows_says_why_nobody_could_be_asked() -> None:
    clock = FakeClock()
    core, _ = routed_core(clock)
    publication = Publish(core.loop, "t", (b"x",), 5.0, clock.now() + 5.0)
    core.submit(publication)
    try:
        clock.advance(5.0)
        core.outcomes.expire()
        with pytest.raises(errors.NotSent, match=r"within 5 s: refused"):
            publication.result(0)
    finally:
        core.leaders.close()
        core.outcomes.stop()


@pytest.mark.rule("YZ-4")
def test_the_partitions_that_owe_the_fewest_answers_are_chosen_among() -> None:
    owed = {Endpoint("a", 1, 0): 3, Endpoint("a", 1, 1): 1, Endpoint("b", 1, 2): 1}
    assert lightest(owed, owed.__getitem__) == [Endpoint("a", 1, 1), Endpoint("b", 1, 2)]
    assert lightest([], owed.__getitem__) == []


LEADERS = (Endpoint("a", 1, 0), Endpoint("b", 1, 1))


class Line:
    """A leader that is connected, and owes nothing."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.connection = self.endpoint = endpoint
        self.link = SimpleNamespace(close=lambda error: None)

    def owes(self) -> list[Publish]:
        return []

    def forget_done(self) -> None:
        pass


class Known:
    """A Writer whose topic "t" has three partitions, the last of which has no leader.

    Its publishes are plain ones, for which the known leaders will do; or *asks*, and then it takes the dialect.
    """

    def __init__(self, asks: bool = False) -> None:
        self._asks = asks
        self.core, self.topic = routed_core(FakeClock())
        self.leaders = self.core.leaders
        self.core.nodes.update({endpoint: Line(endpoint) for endpoint in LEADERS})
        self.sent: list[tuple[Endpoint, Publish]] = []
        self.leaders._send_to = lambda endpoint, publication: self.sent.append((endpoint, publication))
        self.learn(*LEADERS)

    def learn(self, *leaders: Endpoint) -> None:
        partitions = {each.partition: each for each in leaders if each.partition is not None}
        layout = TopicLayout(partition_num=3, partitions=partitions, has_meta=True)
        self.leaders._agreed = lambda topic, lookup: lookup
        self.leaders._learned(self.topic, Lookup(leaders, layout))

    def refuses(self, publication: Publish) -> None:
        """The leader of its partition says that it is none."""
        error = errors.NotLeaderError("E_FAILED_ON_NOT_LEADER")
        self.leaders.retry(publication, error, LEADERS[publication.partition or 0])

    def publication(self, partition: Any = None, body: bytes = b"x", key: bytes | None = None) -> Publish:
        publication = Publish(self.core.loop, "t", (body,), 5.0, self.core.clock.now() + 5.0)
        publication.key, publication.partition = key, partition
        if self._asks:
            publication.request = publication.asked()
        return publication


@pytest.fixture(params=[False, True], ids=["plain", "asked"])
def known(request: pytest.FixtureRequest) -> Iterator[Known]:
    known = Known(request.param)
    yield known
    known.leaders.close()


@pytest.mark.rule("YZ-4")
def test_a_thread_finds_the_leader_unless_something_of_its_partition_waits(known: Known) -> None:
    publication = known.publication(1)
    assert known.leaders.in_thread(publication) is LEADERS[1]
    assert publication.data == b"PUB t 1\n\0\0\0\1x"
    assert known.leaders.in_thread(known.publication(2)) is None  # which has none
    refused = known.publication(0)
    known.refuses(refused)
    assert known.leaders.in_thread(known.publication(0)) is None
    assert known.leaders.in_thread(known.publication(1)) is LEADERS[1]
    known.learn(*LEADERS)
    assert [each for _, each in known.sent] == [refused]
    assert known.leaders.in_thread(known.publication(1)) is LEADERS[1]


@pytest.mark.rule("YZ-5")
def test_a_thread_overtakes_nothing_that_is_put_back_while_it_chooses(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    def puts_back_first(act: Callable[..., Any]) -> Callable[..., Any]:
        def puts_back(*args: Any) -> Any:
            known.refuses(known.publication(0))
            known.learn(*LEADERS)  # all of it is over before the thread goes on
            return act(*args)

        return puts_back

    dialect = known.core.settings.dialect
    monkeypatch.setattr(dialect, "encode", puts_back_first(dialect.encode))
    monkeypatch.setattr(Leaders, "of", puts_back_first(Leaders.of))
    known.leaders._place = lambda topic, publication: None
    assert known.leaders.in_thread(known.publication(0)) is None


@pytest.mark.rule("YZ-5")
def test_a_thread_overtakes_nothing_that_was_held_and_gets_its_place_now(known: Known) -> None:
    held = [known.publication(2) for _ in range(3)]
    for publication in held:
        known.leaders.send(publication)
    assert not known.sent
    overtaking: list[Any] = []

    def place(endpoint: Endpoint, publication: Publish) -> None:
        known.sent.append((endpoint, publication))
        overtaking.append(known.leaders.in_thread(known.publication(2)))

    known.leaders._send_to = place
    last = Endpoint("b", 1, 2)
    known.core.nodes[last] = Line(last)
    known.learn(*LEADERS, last)
    assert known.sent == [(last, publication) for publication in held]
    assert overtaking == [None] * 3
    assert known.leaders.in_thread(known.publication(2)) is last


@pytest.mark.rule("YZ-4")
def test_a_turn_that_a_thread_took_and_could_not_use_is_the_loops(known: Known) -> None:
    """Else each publish would take two turns, and of two partitions one would never have its."""
    chosen = []
    for _ in range(4):
        publication = known.publication()
        chosen.append(known.leaders.in_thread(publication))
        assert known.leaders.in_thread(publication) is chosen[-1]
        known.leaders.send(publication)
    assert chosen == [*LEADERS] * 2
    assert [endpoint for endpoint, _ in known.sent] == [*LEADERS] * 2
    shunned = known.publication()
    known.leaders.in_thread(shunned)
    avoided = shunned.leader
    known.leaders._shunned.add(avoided, whole_node=True)
    known.leaders.send(shunned)
    assert known.sent[-1][0] is not avoided


@pytest.mark.rule("YZ-4")
def test_what_is_lost_is_asked_for_again_as_it_was(known: Known) -> None:
    """Sent without a request, it has one as soon as its leader is lost: its key must not be."""
    lost = known.publication(1)
    assert known.leaders.in_thread(lost) is LEADERS[1]
    known.leaders.put_back([lost], LEADERS[1])
    assert known.leaders.in_thread(known.publication(1)) is None  # nothing comes before it
    moved = Endpoint("c", 1, 1)
    known.learn(LEADERS[0], moved)
    assert known.sent == [(moved, lost)]
    assert lost.data == b"PUB t 1\n\0\0\0\1x"
    assert lost.asked().partition == 1


@pytest.mark.rule("PUB-4")
def test_a_publish_that_any_leader_may_take_avoids_those_that_are_shunned(known: Known) -> None:
    known.leaders._shunned.add(LEADERS[0], whole_node=True)
    assert {known.leaders.in_thread(known.publication()) for _ in range(4)} == {LEADERS[1]}
    assert known.leaders.in_thread(known.publication(0)) is LEADERS[0]  # it must


class TwoLookupds(NoDiscovery):
    """Two nsqlookupds: what each has said last, and whether it fails now."""

    def __init__(self) -> None:
        self.said: dict[str, Lookup] = {}
        self.failing: set[str] = set()

    def health(self) -> dict[str, Health[Endpoint]]:
        return {name: Health(name not in self.failing, None, 0.0, 0, ()) for name in ("one", "other")}


@pytest.mark.rule("DISC-2")
def test_an_nsqlookupd_that_lists_nothing_takes_nothing_away_while_another_lists_it() -> None:
    core, topic = routed_core(FakeClock())
    topic.discovery = two = TwoLookupds()
    listed = Lookup(LEADERS, TopicLayout(partition_num=2, partitions=dict(enumerate(LEADERS)), has_meta=True))
    nothing = Lookup((), TopicLayout())

    def says(name: str, lookup: Lookup) -> bool:
        two.said[name] = lookup
        core.leaders._learned(topic, lookup)
        return topic.fresh

    def lose_all() -> None:
        assert [topic.doubt(leader) for leader in LEADERS] == [True, True]

    try:
        assert not says("one", nothing)
        assert [says("other", listed), says("one", nothing)] == [True, True]
        lose_all()
        assert [says("one", nothing), says("other", nothing)] == [True, False]
        assert says("other", listed)
        lose_all()
        two.failing.add("other")  # what it said before may be long ago
        assert not says("one", nothing)
    finally:
        core.leaders.close()


@pytest.mark.rule("DISC-2")
def test_where_nsqlookupds_differ_the_leaders_go_on_that_have_not_refused() -> None:
    core, topic = routed_core(FakeClock())
    topic.discovery = two = TwoLookupds()
    first, second = LEADERS, (Endpoint("b", 1, 0), Endpoint("a", 1, 1))
    third = (*second, Endpoint("a", 1, 2))

    def says(name: str, leaders: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        layout = TopicLayout(partition_num=3, partitions=dict(enumerate(leaders)), has_meta=True)
        lookup = two.said[name] = Lookup(leaders, layout)
        core.leaders._learned(topic, lookup)
        assert topic.fresh
        return topic.lookup.endpoints if topic.lookup else ()

    try:
        assert [says("one", first), says("other", second), says("one", first)] == [first] * 3
        assert topic.doubt(first[0])
        assert [says("one", first), says("one", first), says("other", second)] == [second] * 3
        assert topic.doubt(second[1])
        assert [says("other", second), says("one", first), says("other", second)] == [first] * 3
        assert topic.doubt(first[0])
        assert says("other", second) == second
        assert [says("one", third), says("other", second)] == [third] * 2  # which knows one more
        assert [says("other", first), says("one", first)] == [third, first]  # nobody lists the others any more
        two.failing.add("other")
        assert says("one", second) == second
    finally:
        core.leaders.close()


@pytest.mark.rule("YZ-5")
def test_what_a_leader_refuses_late_goes_to_the_new_one_before_what_comes_next(known: Known) -> None:
    moved = Endpoint("c", 1, 1)
    known.core.nodes[moved] = Line(moved)
    known.learn(LEADERS[0], moved)
    late = known.publication(1)
    known.refuses(late)
    assert known.sent == [(moved, late)]
    assert known.leaders.in_thread(known.publication(1)) is moved


@pytest.mark.rule("PUB-4")
def test_what_any_leader_may_take_goes_elsewhere_when_one_refuses_it(known: Known) -> None:
    refused = known.publication()
    known.leaders.retry(refused, errors.NotLeaderError("E_FAILED_ON_NOT_LEADER"), LEADERS[0])
    assert known.sent == [(LEADERS[1], refused)]
    assert {known.leaders.in_thread(known.publication()) for _ in range(4)} == {LEADERS[1]}


@pytest.mark.rule("DISC-6")
def test_while_all_nsqlookupds_fail_the_leaders_that_they_listed_last_are_tried_again(known: Known) -> None:
    known.topic.discovery = two = TwoLookupds()
    lost = [known.publication(1), known.publication(1)]
    known.leaders.put_back(lost, LEADERS[1])
    later = known.publication(1)
    assert known.leaders.in_thread(later) is None
    known.leaders.send(later)
    assert known.leaders.in_thread(known.publication(0)) is LEADERS[0]
    two.failing = {"one"}
    known.leaders._round_over(known.topic)
    assert not known.sent  # the other one will say
    two.failing = {"one", "other"}
    known.leaders._round_over(known.topic)
    assert known.sent == [(LEADERS[1], publication) for publication in (*lost, later)]
    assert known.leaders.in_thread(known.publication(1)) is LEADERS[1]


@pytest.mark.rule("DISC-5")
def test_known_leaders_are_used_where_no_nsqlookupd_lists_the_topic_any_more(known: Known) -> None:
    known.learn()
    assert {known.leaders.in_thread(known.publication()) for _ in range(4)} == set(LEADERS)
    refused = known.publication(1)
    known.refuses(refused)
    lost = known.publication(1)
    known.leaders.put_back([lost], LEADERS[1])
    known.learn()
    assert isinstance(refused.last_error, errors.NotLeaderError)
    assert "does it exist?" in str(lost.last_error)
    assert known.leaders.in_thread(known.publication(1)) is None  # left at once, and not asked again
    known.leaders.put_back([known.publication(0)], None)  # what a silent one had
    known.learn()
    assert [endpoint for endpoint, _ in known.sent] == [LEADERS[0]]
    assert known.leaders.in_thread(known.publication(0)) is LEADERS[0]
    known.learn(*LEADERS)
    assert sorted(known.sent[1:], key=lambda sent: sent[1].number) == [(LEADERS[1], each) for each in (refused, lost)]


def test_plain_nsqlookupds_that_list_different_nsqds_all_count(known: Known) -> None:
    plain = [Lookup((Endpoint(name, 1),)) for name in ("a", "b")]
    known.topic.lookup = known.topic.listed = plain[0]
    assert known.topic.weigh(plain[1], plain) is plain[1]


def test_a_lost_leader_is_back_when_all_nsqlookupds_fail_though_nothing_waits(known: Known) -> None:
    known.topic.discovery = two = TwoLookupds()
    known.leaders.put_back([known.publication()], LEADERS[1])
    two.failing = {"one", "other"}
    known.leaders._round_over(known.topic)
    assert {known.leaders.in_thread(known.publication()) for _ in range(4)} == set(LEADERS)


@pytest.mark.rule("YZ-9")
def test_the_dialect_alone_makes_what_needs_more_than_a_pub() -> None:
    route = Lookup(LEADERS, TopicLayout(partition_num=2, partitions=dict(enumerate(LEADERS)), has_meta=True))
    assert YouzanDialect().leaders("t", route) is not None
    assert YouzanDialect(trace=True).leaders("t", route) is None
    assert YouzanDialect(balance="load").leaders("t", route) is None
    assert YouzanDialect().leaders("t", None) is None
    assert YouzanDialect().leaders("t", Lookup(LEADERS, TopicLayout(partitions=dict(enumerate(LEADERS))))) is None


def test_a_bad_partition_is_refused_as_ever(known: Known) -> None:
    for key, partition in ((None, -1), (None, 3), (None, "1"), (None, 1.0), (None, True), (b"k", 1)):
        publication = known.publication(partition, key=key)
        assert known.leaders.in_thread(publication) is None
        known.leaders.send(publication)
        with pytest.raises(errors.OptionError):
            publication.result(0)
