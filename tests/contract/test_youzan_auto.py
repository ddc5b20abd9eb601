"""A Writer that finds out by itself what it talks to, with plain servers and Youzan's beside each other (YZ-14)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from gnsq_lite.broker.registrations import Peer
from gnsq_lite.errors import NotSent, OptionError
from gnsq_lite.http import LookupdClient
from gnsq_lite.youzan.hashing import partition_of
from tests.contract.test_youzan_cluster import Cluster, a_reader, cluster, subscribed, until

__all__ = ["cluster"]

pytestmark = pytest.mark.rule("YZ-14")


@pytest.fixture
def plain() -> Iterator[Broker]:
    with Broker(nsqds=2) as broker:
        yield broker


def a_writer(*lookupds: str, timeout: float = 10.0, lookupd_timeout: float = 5.0) -> Writer:
    return Writer(lookupd_http_addresses=lookupds, publish_timeout=timeout, lookupd_timeout=lookupd_timeout)


def topics_of(plain: Broker) -> set[str]:
    with LookupdClient(plain.lookupd_http_address) as client:
        return set(client.topics())


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_topic_that_youzans_have_never_goes_to_a_plain_nsqd(
    cluster: Cluster, plain: Broker, plain_first: bool
) -> None:
    topic, got = cluster.topic(2), []
    lookupds = [plain.lookupd_http_address, cluster.lookupd]
    with a_reader(cluster, topic, lambda m: got.append(m.body)) as reader:
        subscribed(reader, 2)
        with a_writer(*lookupds[:: 1 if plain_first else -1]) as writer:
            for number in range(60):
                writer.publish(topic, b"%d" % number)
            assert topic not in topics_of(plain)
        until(lambda: len(got) == 60)


def test_a_topic_that_youzans_do_not_have_goes_to_those_a_plain_nsqlookupd_lists_for_it(
    cluster: Cluster, plain: Broker
) -> None:
    with a_writer(plain.lookupd_http_address) as writer:
        writer.publish("plainly", b"1")
    until(lambda: "plainly" in topics_of(plain))
    with a_writer(plain.lookupd_http_address, cluster.lookupd) as writer:
        for number in range(10):
            writer.publish("plainly", b"%d" % number)
        writer.publish("plainly", b"later", defer=60.0)
        with pytest.raises(OptionError, match="Youzan"):
            writer.publish("plainly", b"x", key=b"k")
        with pytest.raises(NotSent, match="nsqlookupd"):
            writer.publish("nowhere", b"x", timeout=1.0)
    assert "nowhere" not in topics_of(plain)


def test_who_registers_with_a_plain_nsqlookupd_does_not_turn_a_writer_to_youzans(plain: Broker) -> None:
    registrant = Peer("9", "127.0.0.1:9", "h", "127.0.0.1", 9, 9, "0.3.7-HA.1.13.0")
    db = plain._lookupds[0].db
    plain.call(lambda: db.introduce(registrant))
    plain.call(lambda: db.register(registrant, "here"))
    assert "here" in topics_of(plain)
    with a_writer(plain.lookupd_http_address) as writer:
        writer.publish("new", b"x")
        writer.publish("new", b"x", defer=60.0)
        with pytest.raises(OptionError, match="Youzan"):
            writer.publish("new", b"x", key=b"k")


def test_the_first_publish_of_all_may_have_a_key(cluster: Cluster) -> None:
    topic, got = cluster.topic(2), []
    with a_reader(cluster, topic, lambda m: got.append((m.partition, m.body))) as reader:
        subscribed(reader, 2)
        with a_writer(cluster.lookupd) as writer:
            writer.publish(topic, b"first", key=b"a")
            writer.multipublish(topic, [b"second"], key=b"a")
        until(lambda: len(got) == 2)
    assert {partition for partition, _ in got} == {partition_of(b"a", 2)}


def test_a_publish_waits_until_each_nsqlookupd_has_answered_or_failed(plain: Broker) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with a_writer(plain.lookupd_http_address, address, lookupd_timeout=1.0) as writer:
            began = time.monotonic()
            writer.publish("t", b"x")
            assert time.monotonic() - began >= 0.9


def test_what_only_youzans_can_do_is_refused_where_the_first_publish_finds_plain_nsq(plain: Broker) -> None:
    for asked in ({"key": b"k"}, {"partition": 0}, {"headers": {"a": 1}}):
        with a_writer(plain.lookupd_http_address) as writer:
            with pytest.raises(OptionError, match="Youzan"):
                writer.publish("t", b"x", **asked)  # type: ignore[arg-type]
            writer.publish("t", b"x", defer=60.0)
            assert writer.stats().published == 1
            # None failed where the nsqlookupd had answered before that was asked for: a wrong argument like any other.
            assert writer.stats().failed <= 1
