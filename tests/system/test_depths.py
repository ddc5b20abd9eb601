"""The depths of channels, from nsqd's HTTP API, for a Worker's pages and for a Spark query's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import TLSOptions, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.http import NsqdClient
from gnsq_lite.net.depths import EVERY, Depths
from gnsq_lite.options import format_address
from tests.certs import Certificates, server_context
from tests.fakes import FakeClock
from tests.system.http_stub import stub
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


def made(clock: FakeClock, **options: Any) -> Depths:
    ASKED.clear()
    return Depths(lambda topic: options, lambda name, run: ASKED.append(run), clock)


def test_the_depths_of_all_nsqds_are_polled_now_and_then(broker: Broker) -> None:
    clock = FakeClock()
    depths = made(clock, lookupd_http_addresses=broker.lookupd_http_address)
    assert depths.total("t", "c") is None, "no call waits for nsqd"
    assert depths.total("t", "c") is None
    assert len(ASKED) == 1, "one poll at a time"
    ASKED[0]()
    assert depths.total("t", "c") == 11
    assert len(ASKED) == 1
    clock.advance(EVERY)
    assert depths.total("t", "c") == 11
    assert len(ASKED) == 2


def test_a_total_without_one_nsqd_is_unknown(broker: Broker) -> None:
    with Broker() as other:
        gone = format_address(other.tcp_address)
    depths = made(FakeClock(), lookupd_http_addresses=broker.lookupd_http_address, nsqd_tcp_addresses=gone)
    depths.total("t", "c")
    ASKED[0]()
    assert depths.total("t", "c") is None


def test_replicas_are_not_counted_with_the_partitions_that_an_nsqd_leads() -> None:
    with YouzanBroker(nsqds=2) as cluster:
        cluster.youzan.create_topic("t", partitions=3, replicas=2)
        cluster.youzan.create_channel("t", "c")
        with Writer(lookupd_http_addresses=cluster.lookupd_http_address, dialect="youzan") as writer:
            for number in range(3):
                for _ in range(number + 1):
                    writer.publish("t", b"x", partition=number)
        depths = made(FakeClock(), lookupd_http_addresses=cluster.lookupd_http_address)
        depths.total("t", "c")
        ASKED[0]()
        assert depths.total("t", "c") == 6


def test_nsqlookupd_gets_the_token_and_only_https_uses_the_tls_options(broker: Broker, certs: Certificates) -> None:
    first, second = ({"producers": [_entry(node.tcp_address, node.http_address)]} for node in broker.nodes)
    with stub(server_context(certs)) as secure, stub() as plain:
        secure.answers["/lookup"], plain.answers["/lookup"] = (200, first), (200, second)
        depths = made(
            FakeClock(),
            lookupd_http_addresses=[f"https://{secure.address}", plain.address],
            lookupd_tls=TLSOptions(ca_file=certs.ca),
            lookupd_token="s3cret",
        )
        depths.total("t", "c")
        ASKED[0]()
        assert depths.total("t", "c") == 11
    assert secure.requests[0].headers["authorization"] == "Bearer s3cret"
    assert plain.requests[0].headers["authorization"] == "Bearer s3cret"


def _entry(tcp: tuple[str, int], http: str) -> dict[str, Any]:
    return {"broadcast_address": tcp[0], "tcp_port": tcp[1], "http_port": int(http.rpartition(":")[2])}


def test_the_http_addresses_of_nsqds_with_other_ports_are_given(broker: Broker) -> None:
    tcp = [node.nsqd_tcp_address for node in broker.nodes]
    http = [node.http_address for node in broker.nodes]
    depths = made(FakeClock(), nsqd_tcp_addresses=tcp, nsqd_http_addresses=http)
    depths.total("t", "c")
    ASKED[0]()
    assert depths.total("t", "c") == 11
