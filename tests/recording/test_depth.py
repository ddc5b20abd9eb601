"""What nsqd still holds, for a query's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from gnsq_lite.http import NsqdClient
from gnsq_lite.options import format_address
from gnsq_lite.recording.depth import EVERY, ChannelDepth
from gnsq_lite.spark.options import SourceOptions, parse
from tests.fakes import FakeClock
from tests.youzan_broker import YouzanBroker

ASKED: list[Callable[[], None]] = []


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(nsqds=2) as made:
        for number, node in enumerate(made.nodes):
            with NsqdClient(node.http_address) as nsqd, Writer(node.nsqd_tcp_address) as writer:
                nsqd.create_topic("t")
                nsqd.create_channel("t", "c")
                nsqd.create_channel("t", "another")
                writer.multipublish("t", [b"x"] * (5 + number))
        yield made


def made(clock: FakeClock, **more: str) -> ChannelDepth:
    ASKED.clear()
    options = parse(SourceOptions, {"topic": "t", "channel": "c", "recording": "/s", **more})
    return ChannelDepth(options.recorder(), lambda name, run: ASKED.append(run), clock)


def test_the_depths_of_all_nsqds_are_told_and_asked_for_now_and_then(broker: Broker) -> None:
    clock = FakeClock()
    depth = made(clock, lookupdHTTPAddresses=broker.lookupd_http_address)
    assert depth.look() is None, "who looks waits for nothing"
    assert depth.look() is None
    assert len(ASKED) == 1, "one question at a time"
    ASKED[0]()
    assert depth.look() == 11
    assert len(ASKED) == 1
    clock.advance(EVERY)
    assert depth.look() == 11
    assert len(ASKED) == 2


def test_a_part_of_the_depth_is_no_depth(broker: Broker) -> None:
    with Broker() as other:
        gone = format_address(other.tcp_address)
    depth = made(FakeClock(), lookupdHTTPAddresses=broker.lookupd_http_address, nsqdTCPAddresses=gone)
    depth.look()
    ASKED[0]()
    assert depth.look() is None


def test_replicas_are_not_counted_with_the_partitions_that_an_nsqd_leads() -> None:
    with YouzanBroker(nsqds=2) as cluster:
        cluster.youzan.create_topic("t", partitions=3, replicas=2)
        cluster.youzan.create_channel("t", "c")
        with Writer(lookupd_http_addresses=cluster.lookupd_http_address, dialect="youzan") as writer:
            for number in range(3):
                for _ in range(number + 1):
                    writer.publish("t", b"x", partition=number)
        depth = made(FakeClock(), lookupdHTTPAddresses=cluster.lookupd_http_address)
        depth.look()
        ASKED[0]()
        assert depth.look() == 6
