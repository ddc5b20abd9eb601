"""A real Youzan cluster whose servers are killed, stopped and changed while a Reader and a Writer use it."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.contract.youzan_clients import Cluster
from tests.programs import wait_for
from tests.youzan_servers import RealCluster

pytestmark = [pytest.mark.youzan, pytest.mark.rule("YZ-8"), pytest.mark.rule("YZ-12")]

#: Seconds in which the real cluster has another leader, with much to spare.
_FAILOVER = 240.0


@pytest.fixture
def real(failing_youzan_cluster: RealCluster) -> Iterator[RealCluster]:
    yield failing_youzan_cluster
    failing_youzan_cluster.mend()


def made(real: RealCluster, partitions: int, **flags: Any) -> tuple[Cluster, str]:
    """Return the cluster and a new topic of it, with a channel that starts before the first message."""
    cluster = Cluster(real.leading().http_address, None)
    topic = cluster.topic(partitions, **flags)
    with reading(real, topic, [], ordered="orderedmulti" in flags) as reader:
        wait_for(lambda: len(reader.stats().connections) == partitions, 60.0)
    return cluster, topic


def reading(real: RealCluster, topic: str, got: list[Any], *, ordered: bool = False) -> Reader:
    return Reader(
        topic,
        "c",
        lambda m: got.append((m.partition, m.body)),
        lookupd_http_addresses=real.addresses,
        lookupd_poll_interval=5.0,
        dialect=YouzanDialect(ordered=ordered),
        max_in_flight=8,
        requeue_delay=0.3,
    )


def writing(real: RealCluster) -> Writer:
    return Writer(
        lookupd_http_addresses=real.addresses, dialect=YouzanDialect(), publish_timeout=_FAILOVER, retries=100
    )


def firsts(got: list[Any]) -> list[bytes]:
    """Return the bodies, each where it came first."""
    return list(dict.fromkeys(body for _, body in got))


def test_a_leader_that_is_killed_is_followed_in_order_and_nothing_is_lost(real: RealCluster) -> None:
    cluster, topic = made(real, 1, replicas=2, orderedmulti="true")
    got: list[Any] = []
    with reading(real, topic, got, ordered=True), writing(real) as writer:
        for number in range(200):
            if number == 100:
                real.at(cluster.leaders(topic)[0]).kill()
            writer.publish(topic, b"%d" % number, key=b"k")
        wait_for(lambda: len(firsts(got)) == 200, _FAILOVER)
    assert firsts(got) == [b"%d" % number for number in range(200)]


@pytest.mark.rule("PUB-4")
def test_a_leader_that_is_stopped_holds_up_its_own_partition_alone(real: RealCluster) -> None:
    cluster, topic = made(real, 2)
    got: list[Any] = []
    with reading(real, topic, got), writing(real) as writer:
        for number in range(4):
            writer.publish(topic, b"before %d" % number)
        stopped = real.at(cluster.leaders(topic)[0])
        stopped.signal(signal.SIGSTOP)
        keyed = threading.Thread(target=writer.publish, args=(topic, b"held"), kwargs={"partition": 0})
        keyed.start()
        writer.publish(topic, b"who notices")
        writer.publish(topic, b"or this one")
        seconds = []
        for number in range(20):
            began = time.monotonic()
            writer.publish(topic, b"%d" % number)
            seconds.append(time.monotonic() - began)
        assert max(seconds) < 10.0, seconds  # milliseconds; the publish to the stopped leader waits until it goes on
        stopped.signal(signal.SIGCONT)
        keyed.join(_FAILOVER)
        wait_for(lambda: len(firsts(got)) == 27, _FAILOVER)
    assert (0, b"held") in got


@pytest.mark.rule("YZ-1")
def test_the_leading_nsqlookupd_may_die(real: RealCluster) -> None:
    _, topic = made(real, 1)
    got: list[Any] = []
    with reading(real, topic, got) as reader, writing(real) as writer:
        wait_for(lambda: reader.stats().connections, 60.0)
        writer.publish(topic, b"before")
        real.leading().kill()
        writer.publish(topic, b"after")
        with writing(real) as late:
            late.publish(topic, b"late")
        wait_for(lambda: len(firsts(got)) == 3, 60.0)


@pytest.mark.rule("YZ-3")
def test_partitions_that_a_topic_grows_are_written_and_read(real: RealCluster) -> None:
    cluster, topic = made(real, 1)
    got: list[Any] = []
    with reading(real, topic, got) as reader, writing(real) as writer:
        writer.publish(topic, b"first")
        wait_for(lambda: cluster.try_post(f"/topic/partition/expand?topic={topic}&partition_num=2"), _FAILOVER)
        wait_for(lambda: len(cluster.leaders(topic)) == 2, _FAILOVER)
        wait_for(lambda: len(reader.stats().connections) == 2, 60.0)
        with writing(real) as fresh:
            fresh.publish(topic, b"there", partition=1)
        wait_for(lambda: (1, b"there") in got)


@pytest.mark.rule("YZ-15")
def test_a_topic_that_becomes_ext_is_read_on_within_a_lookup(real: RealCluster) -> None:
    cluster, topic = made(real, 1)
    got: list[Any] = []
    with reading(real, topic, got) as reader, writing(real) as writer:
        writer.publish(topic, b"plain")
        wait_for(lambda: got)
        wait_for(lambda: cluster.try_post(f"/topic/meta/update?topic={topic}&upgradeext=true"), 120.0)
        marker = uuid.uuid4().hex.encode()
        writer.publish(topic, marker)
        wait_for(lambda: (0, marker) in got, 30.0)  # a poll is every 5 s; a missing heartbeat is noticed after a minute
        assert reader.stats().connections
