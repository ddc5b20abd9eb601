"""``dialect="nsq"``, the default, on Youzan's nsqds: a typed error, and no message is read or published (YZ-14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.broker import Broker
from gnsq_lite.errors import NSQError, OptionError, WrongDialectError
from tests.programs import wait_for
from tests.system.http_stub import Stub, stub
from tests.youzan_broker import YouzanBroker

pytestmark = pytest.mark.rule("YZ-14")

#: Seconds for the error; a publish that comes after a failed attempt waits for the next one, at most 5 s.
AT_ONCE = 25.0


@pytest.fixture
def youzan() -> Iterator[YouzanBroker]:
    """Run a cluster of two nsqds whose topic "t" has two partitions and the channel "c"."""
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", 2)
        broker.youzan.create_channel("t", "c")
        yield broker


def addresses(broker: Broker, kind: str) -> dict[str, Any]:
    nsqds = [f"{host}:{port}" for host, port in (node.tcp_address for node in broker.nodes)]
    return {"nsqd_tcp_addresses": nsqds} if kind == "nsqds" else {"lookupd_http_addresses": broker.lookupd_http_address}


def raises_at_once(call: Callable[[], Any]) -> None:
    began = time.monotonic()
    with pytest.raises(WrongDialectError, match=r"Youzan's NSQ \(0\.3\.7-HA\.1\.13\.0\): pass dialect='youzan'"):
        call()
    assert time.monotonic() - began < AT_ONCE


def lists(server: Stub, *brokers: Broker) -> None:
    """Have a scripted nsqlookupd list the nsqds of *brokers*."""
    hosts = [node.tcp_address for broker in brokers for node in broker.nodes]
    nodes = [{"broadcast_address": host, "tcp_port": port, "http_port": 1, "topics": []} for host, port in hosts]
    server.answers["/lookup"] = (200, {"channels": [], "producers": nodes})
    server.answers["/nodes"] = (200, {"producers": nodes})


@pytest.mark.parametrize("kind", ["nsqds", "nsqlookupd"])
def test_start_of_a_reader_raises_and_no_message_is_read(youzan: YouzanBroker, kind: str) -> None:
    got, errors = [], []
    with Writer(lookupd_http_addresses=youzan.lookupd_http_address, dialect="youzan") as writer:
        for number in range(10):
            writer.publish("t", b"%d" % number)
    where = addresses(youzan, kind)
    reader = Reader("t", "c", got.append, **where, max_in_flight=10, on_error=errors.append)
    raises_at_once(reader.start)
    assert not got
    assert isinstance(errors[0], WrongDialectError)
    waits = Reader("t", "c", got.append, **where)
    waits.start(block=False)
    raises_at_once(lambda: waits.join(10.0))
    with Reader(
        "t", "c", got.append, lookupd_http_addresses=youzan.lookupd_http_address, dialect="youzan", max_in_flight=10
    ):
        wait_for(lambda: len(got) == 10)
    assert {message.attempts for message in got} == {1}


@pytest.mark.parametrize("kind", ["nsqds", "nsqlookupd"])
@pytest.mark.parametrize(
    "publish",
    [
        lambda writer: writer.publish("t", b"x"),
        lambda writer: writer.multipublish("t", [b"x", b"y"]),
        lambda writer: writer.publish_nowait("t", b"x").result(),
    ],
    ids=["publish", "multipublish", "publish_nowait"],
)
def test_the_first_publish_raises_and_nothing_is_published(
    youzan: YouzanBroker, kind: str, publish: Callable[[Writer], Any]
) -> None:
    with Writer(**addresses(youzan, kind), publish_timeout=30.0) as writer:
        raises_at_once(lambda: publish(writer))
        assert writer.stats().published == 0
    assert [youzan.youzan.bodies("t", partition) for partition in (0, 1)] == [[], []]


def test_a_publish_raises_though_another_nsqd_of_the_cluster_is_away(youzan: YouzanBroker) -> None:
    host, port = youzan.nodes[0].tcp_address
    with Writer([f"{host}:{port}", "127.0.0.1:1"], publish_timeout=30.0) as writer:
        raises_at_once(lambda: writer.publish("t", b"x"))


def test_a_reader_consumes_although_discovery_finds_a_youzan_nsqd_too(youzan: YouzanBroker) -> None:
    got: list[bytes] = []
    errors: list[NSQError] = []
    with Broker() as plain, stub() as lookupd:
        lists(lookupd, plain)
        reader = Reader(
            "t",
            "c",
            lambda message: got.append(message.body),
            lookupd_http_addresses=lookupd.address,
            lookupd_poll_interval=0.1,
            reconnect_delay=0.01,
            max_reconnect_delay=60.0,
            on_error=errors.append,
        )
        with reader, Writer(plain.nsqd_tcp_address) as writer:
            wait_for(lambda: reader.stats().connections)
            lists(lookupd, plain, youzan)
            wait_for(lambda: len(errors) >= 4)
            writer.publish("t", b"x")
            wait_for(lambda: got)
            assert {type(error) for error in errors} == {WrongDialectError}


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_writer_goes_on_beside_a_youzan_nsqd_found_later(youzan: YouzanBroker, in_loop: bool) -> None:
    with Broker() as plain, stub() as lookupd:
        lists(lookupd, plain)
        with Writer(lookupd_http_addresses=lookupd.address, lookupd_poll_interval=0.1) as writer:
            writer.publish("t", b"x")
            lists(lookupd, plain, youzan)
            asked = len(lookupd.requests)
            wait_for(lambda: len(lookupd.requests) > asked + 3)
            for _ in range(20):
                if in_loop:
                    writer.publish_nowait("t", b"x").result()
                else:
                    writer.publish("t", b"x")
            assert writer.stats().published == 21
    assert [youzan.youzan.bodies("t", partition) for partition in (0, 1)] == [[], []]


def test_options_of_youzans_nsq_are_refused_and_name_the_dialect() -> None:
    for options in ({"ordered": True}, {"partitions": [0]}):
        with pytest.raises(OptionError, match="pass dialect='youzan'"):
            Reader("t", "c", print, **options)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="pass dialect='youzan'"):
        Writer(trace=True)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="'nsq' or 'youzan'"):
        Writer(dialect="auto")  # type: ignore[call-overload]
