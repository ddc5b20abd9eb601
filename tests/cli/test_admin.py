"""Topics, channels and nodes from a terminal, on all nodes of a cluster: the broker's, nsqd's and Youzan's."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Message, Reader
from gnsq_lite.broker import Broker
from gnsq_lite.errors import HTTPStatusError
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.options import format_address
from tests.cli.programs import call, command, environment
from tests.cli.programs import run as program
from tests.conftest import MakeCluster
from tests.programs import STARTING, wait_for
from tests.servers import Cluster
from tests.youzan_broker import YouzanBroker

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster(nodes=2)


def patiently(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Return *condition*, or false while the cluster reports that it is not stable."""

    def check() -> bool:
        try:
            return condition()
        except HTTPStatusError:
            return False

    return check


def act(where: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
    """Run it with --yes and --json; return what became of each step."""
    done = call(*words, "--yes", "--json", "--lookupd-http-address", where)
    assert done[0] == code, done
    return json.loads(done[1]) if done[1] else []


def state(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    """Return (paused, depth, {channel: (paused, depth)}) of each node that has the topic."""
    found = []
    for node in cluster.nodes:
        with NsqdClient(node.http_address) as nsqd:
            for one in nsqd.stats(topic).topics:
                found.append((one.paused, one.depth, {c.channel_name: (c.paused, c.depth) for c in one.channels}))
    return found


def test_a_topic_and_a_channel_are_created_and_deleted_on_all_nodes(cluster: Cluster, topic: str) -> None:
    where = cluster.lookupd_http_address
    for node in cluster.nodes:
        with NsqdClient(node.http_address) as nsqd:
            nsqd.create_topic(topic)
    cluster.wait_registered(topic, 2)
    assert len(act(where, "channel", "create", topic, "c")) == 3  # an nsqlookupd and two nsqds
    assert state(cluster, topic) == [(False, 0, {"c": (False, 0)})] * 2
    act(where, "topic", "pause", topic)
    act(where, "channel", "pause", topic, "c")
    for node in cluster.nodes:
        node.publish(topic, b"x", b"y")
    assert state(cluster, topic) == [(True, 2, {"c": (True, 0)})] * 2
    act(where, "topic", "empty", topic)
    assert [depth for _, depth, _ in state(cluster, topic)] == [0, 0]
    for node in cluster.nodes:
        node.publish(topic, b"x")
    act(where, "topic", "unpause", topic)
    wait_for(lambda: state(cluster, topic) == [(False, 0, {"c": (True, 1)})] * 2, what="the flow to the channel")
    act(where, "channel", "empty", topic, "c")
    act(where, "channel", "unpause", topic, "c")
    assert state(cluster, topic) == [(False, 0, {"c": (False, 0)})] * 2
    outcomes = act(where, "channel", "delete", topic, "c")
    assert {each["outcome"] for each in outcomes} == {"ok"}
    assert state(cluster, topic) == [(False, 0, {})] * 2
    assert {each["outcome"] for each in act(where, "topic", "delete", topic)} == {"ok"}
    assert state(cluster, topic) == []
    with LookupdClient(where) as lookupd:
        wait_for(lambda: topic not in lookupd.topics(), what="the end of the topic")


def test_a_topic_is_created_at_the_nsqlookupd_and_on_nsqds_given_by_flags(cluster: Cluster, topic: str) -> None:
    where = cluster.lookupd_http_address
    assert [each["act"] for each in act(where, "topic", "create", topic)] == ["create topic"]
    assert state(cluster, topic) == []
    act(where, "topic", "create", topic, "--nsqd-http-address", cluster.nodes[0].http_address)
    assert len(state(cluster, topic)) == 1


def test_a_node_is_tombstoned_and_its_topic_deleted(cluster: Cluster, topic: str) -> None:
    for node in cluster.nodes:
        with NsqdClient(node.http_address) as nsqd:
            nsqd.create_topic(topic)
    cluster.wait_registered(topic, 2)
    where = cluster.lookupd_http_address
    assert act(where, "node", "tombstone", "nobody:4151", topic, code=1) == []
    assert len(act(where, "node", "tombstone", cluster.nodes[0].http_address, topic)) == 2
    cluster.wait_registered(topic, 1)
    assert len(state(cluster, topic)) == 1


def test_a_topic_on_no_node_is_a_failure_and_a_topic_on_some_nodes_is_not(cluster: Cluster, topic: str) -> None:
    where = cluster.lookupd_http_address
    for words in (("topic", "delete"), ("topic", "pause")):
        assert act(where, *words, topic, code=1) == []
    for node in cluster.nodes:
        with NsqdClient(node.http_address) as nsqd:
            nsqd.create_topic(topic)
    with NsqdClient(cluster.nodes[0].http_address) as nsqd:
        nsqd.create_channel(topic, "c")
    cluster.wait_registered(topic, 2)
    assert sorted(each["outcome"] for each in act(where, "channel", "pause", topic, "c")) == ["absent", "ok"]
    assert [each["outcome"] for each in act(where, "channel", "pause", topic, "nope", code=1)] == ["absent"] * 2
    given = ("--nsqd-http-address", NOWHERE)
    outcomes = act(where, "channel", "unpause", topic, "c", *given, code=1)
    assert sorted(each["outcome"] for each in outcomes) == ["absent", "failed", "ok"]
    (failed,) = (each for each in outcomes if each["outcome"] == "failed")
    assert NOWHERE in failed["error"]


def test_without_yes_and_without_a_terminal_no_step_runs() -> None:
    with Broker() as broker:
        with NsqdClient(broker.node.http_address) as nsqd:
            nsqd.create_topic("t")
        where = ("--lookupd-http-address", broker.lookupd_http_address)
        done = program("topic", "delete", "t", *where, stdin=b"y\n")
        assert done.returncode == 2
        assert b"--yes" in done.stderr
        assert [t["topic_name"] for t in broker.node.stats()["topics"]] == ["t"]
        assert call("topic", "delete", "a b", "--yes", *where)[0] == 2


def test_on_a_terminal_the_steps_are_shown_and_confirmed() -> None:
    from tests.cli.terminals import Terminal

    with Broker() as broker:
        for answer, left in ((b"n\r", ["t"]), (b"y\r", [])):
            with NsqdClient(broker.node.http_address) as nsqd:
                nsqd.create_topic("t")
            terminal = Terminal("topic", "delete", "t", "--nsqd-http-address", broker.node.http_address)
            try:
                wait_for(lambda terminal=terminal: terminal.shows("Run these steps?"), STARTING, "the question")  # type: ignore[misc]
                assert terminal.shows(broker.node.http_address)
                terminal.type(answer)
                assert terminal.end() == (130 if left else 0)
            finally:
                terminal.close()
            assert [t["topic_name"] for t in broker.node.stats()["topics"]] == left


# -- Youzan's


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.youzan)])
def youzan(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield request.getfixturevalue("youzan_lookupd")
        return
    with YouzanBroker(nsqds=2) as broker:
        yield broker.lookupd_http_address


def test_a_topic_of_youzans_nsq_is_created_and_deleted_on_all_partitions(
    youzan: str, request: pytest.FixtureRequest
) -> None:
    topic = f"admin{uuid.uuid4().hex[:10]}"
    assert act(youzan, "topic", "create", topic, code=2) == []
    act(youzan, "topic", "create", topic, "--partition-num", "2", "--replicator", "1")
    with LookupdClient(youzan) as lookupd:

        def is_made() -> bool:
            # Asked again, it changes nothing, but has the cluster look again for leaders.
            lookupd.create_topic(topic, partition_num=2, replicator=1)
            return len(lookupd.lookup(topic, access="w").partitions) == 2

        wait_for(patiently(is_made), 200.0, "the partitions")
        places = lookupd.lookup(topic, access="w").partitions
    outcomes = act(youzan, "channel", "create", topic, "c")
    assert sorted(each["act"] for each in outcomes) == ["create channel, partition 0", "create channel, partition 1"]

    def paused() -> list[bool]:
        found = []
        for number, node in sorted(places.items()):
            with NsqdClient(format_address(node.http_address)) as nsqd:
                stats = nsqd.stats(topic, "c", partition=number)
                found += [c.paused for t in stats.topics if t.topic_partition == number for c in t.channels]
        return found

    assert paused() == [False, False]
    if request.node.callspec.params["youzan"] == "real":  # the broker's has no such calls
        act(youzan, "channel", "pause", topic, "c")
        assert paused() == [True, True]
        act(youzan, "channel", "unpause", topic, "c")
        act(youzan, "channel", "empty", topic, "c")
        assert paused() == [False, False]
    assert act(youzan, "topic", "pause", topic, code=1) == []
    act(youzan, "channel", "delete", topic, "c")
    assert paused() == []
    act(youzan, "topic", "delete", topic)
    with LookupdClient(youzan) as lookupd:
        wait_for(lambda: topic not in lookupd.topics(), what="the end of the topic")


def test_a_drained_node_is_hidden_from_lookups_and_the_command_waits_for_its_last_message(
    cluster: Cluster, topic: str
) -> None:
    node, where = cluster.nodes[0], ["--lookupd-http-address", cluster.lookupd_http_address]
    drain = ["node", "drain", node.http_address, *where]
    node.prepare(topic, "ch")
    node.publish(topic, b"1", b"2")
    code, _, unknown = call("node", "drain", NOWHERE, *where)
    assert code == 1
    assert node.http_address in unknown
    with LookupdClient(cluster.lookupd_http_address) as lookupd:
        wait_for(lambda: lookupd.lookup(topic).producers, what="registered")
        code, _, left = call(*drain, "--timeout", "1s")
        assert code == 1
        assert f"{topic}/ch: 2 messages are left" in left
        assert not lookupd.lookup(topic).producers
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        time.sleep(1.0)
        seen.append(message.body)

    with (
        subprocess.Popen(command(*drain, "--idle", "100ms"), env=environment()) as draining,
        Reader(topic, "ch", handle, nsqd_tcp_addresses=node.tcp_address),
    ):
        assert draining.wait(60) == 0
        assert len(seen) == 2
