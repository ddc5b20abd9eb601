"""Partitions of a Youzan cluster whose leader moves or dies, and partitions without a leader."""

from __future__ import annotations

import time

import pytest

from gnsq_lite.errors import (
    NotLeaderError,
)
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.discovery import Discovery
from tests.contract import youzan_clients
from tests.contract.youzan_clients import Cluster, a_reader, a_writer, subscribed
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker

cluster = youzan_clients.cluster


@pytest.mark.rule("YZ-8")
@pytest.mark.rule("YZ-12")
@pytest.mark.rule("YZ-18")
def test_reader_and_writer_follow_a_leader_and_lose_nothing_nor_the_order_of_a_key(cluster: Cluster) -> None:
    topic, got = cluster.topic(2, replicas=2, orderedmulti="true"), []
    nodes = set(cluster.leaders(topic).values())
    assert len(nodes) == 2
    with a_reader(cluster, topic, lambda m: got.append(m.body), ordered=True) as reader:
        subscribed(reader, 2)
        with a_writer(cluster) as writer:
            for number in range(300):
                writer.publish(topic, b"%d:%d" % (number % 7, number), key=b"%d" % (number % 7))
                if number == 100:
                    cluster.move(topic, 0, nodes)
        wait_for(lambda: len(set(got)) == 300, 40.0)
    first_seen: dict[bytes, int] = {}
    for at, body in enumerate(got):
        first_seen.setdefault(body, at)
    for key in range(7):
        places = [first_seen[b"%d:%d" % (key, number)] for number in range(key, 300, 7)]
        assert places == sorted(places)


@pytest.mark.rule("YZ-5")
@pytest.mark.rule("YZ-8")
def test_a_partition_without_a_leader_holds_up_its_own_publishes_alone() -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        broker.youzan.set_writable("t", 1, False)
        with a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:
            held = [writer.publish_nowait("t", b"%d" % number, partition=1) for number in range(3)]
            for _ in range(50):
                writer.publish("t", b"x", partition=0)
            held.append(writer.publish_nowait("t", b"3", partition=1))
            assert not any(publication.done() for publication in held)
            broker.youzan.set_writable("t", 1, True)
            for publication in held:
                publication.result(20.0)
        assert broker.youzan.bodies("t", 0) == [b"x"] * 50
        assert broker.youzan.bodies("t", 1) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
@pytest.mark.rule("YZ-8")
def test_a_publish_takes_milliseconds_beside_twenty_thousand_that_wait_for_another_leader() -> None:
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", 2)
        broker.youzan.set_writable("t", 1, False)
        with a_writer(Cluster(broker.lookupd_http_address, broker)) as writer:
            writer.publish("t", b"x", partition=0)
            held = [writer.publish_nowait("t", b"%d" % number, partition=1) for number in range(20_000)]
            took = []
            for _ in range(100):
                began = time.monotonic()
                writer.publish("t", b"x", partition=0)
                took.append(time.monotonic() - began)
                time.sleep(0.01)
            assert sorted(took)[50] < 0.1  # 1 ms; tests/unit/youzan/test_router.py bounds the CPU time of a lookup
            broker.youzan.set_writable("t", 1, True)
            for publication in held:
                publication.result(30.0)
        assert broker.youzan.bodies("t", 1) == [b"%d" % number for number in range(20_000)]


@pytest.mark.rule("YZ-11")
@pytest.mark.rule("YZ-12")
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_leader_that_dies_is_followed_to_the_replica_and_nothing_is_lost(how: str) -> None:
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2, replicas=2, ordered=True)
        broker.youzan.create_channel("t", "c")
        cluster, got = Cluster(broker.lookupd_http_address, broker), []
        with a_reader(cluster, "t", lambda m: got.append(m.body), ordered=True) as reader:
            subscribed(reader, 2)
            # what was sent when the connection ended is of unknown outcome: at least once needs retries (PUB-2)
            with a_writer(cluster, retries=5) as writer:
                for number in range(200):
                    writer.publish("t", b"%d" % number, partition=0)
                    if number == 100:
                        getattr(broker.nodes[broker.youzan.leader("t", 0) or 0], how)()
            wait_for(lambda: len(set(got)) == 200)
        seen = list(dict.fromkeys(got))
    assert seen == [b"%d" % number for number in range(200)]


@pytest.mark.rule("YZ-12")
def test_a_partition_that_had_no_leader_for_a_while_is_read_again_long_before_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    poll = Discovery.poll

    def counted(discovery: Discovery) -> None:
        asked.append(time.monotonic())
        poll(discovery)

    monkeypatch.setattr(Discovery, "poll", counted)
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        cluster, got = Cluster(broker.lookupd_http_address, broker), []
        with a_reader(cluster, "t", lambda m: got.append(m.body)) as reader:
            subscribed(reader, 2)
            asked.clear()
            node = broker.nodes[broker.youzan.leader("t", 0) or 0]
            node.kill()
            wait_for(lambda: len(asked) >= 3)  # the first ones find no leader, and the next poll is a minute away
            node.restart()
            wait_for(lambda: len(reader.stats().connections) == 2)
            with a_writer(cluster) as writer:
                writer.publish("t", b"after", partition=0)
            wait_for(lambda: got)


@pytest.mark.rule("YZ-12")
def test_an_nsqd_that_refuses_with_not_leader_is_retried_each_second_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[float] = []

    def refuse(connection: Connection) -> None:
        tried.append(time.monotonic())
        raise NotLeaderError("E_FAILED_ON_NOT_LEADER")

    monkeypatch.setattr(Connection, "open", refuse)
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", 1)
        with a_reader(Cluster(broker.lookupd_http_address, broker), "t", print):
            wait_for(lambda: len(tried) >= 6)
    assert 2.0 < tried[5] - tried[0] < 20.0  # polls are urgent: policy/reconnect.py
    told = [record for record in caplog.records if "NOT_LEADER" in record.getMessage()]
    assert [record.levelname for record in told if record.levelname != "DEBUG"] == ["WARNING"]
