"""Which nsqds a source says it misses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.recording.receiver import REMEMBERED, Receiver
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.stats import Health
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.servers import Cluster
from tests.youzan_broker import YouzanBroker


class FakeReader:
    """Has the connections it is told of."""

    def __init__(self) -> None:
        self.connections: list[tuple[str, int | None]] = []
        self.lookupds: dict[str, Health] = {}

    def stats(self) -> Any:
        connections = [SimpleNamespace(address=a, partition=p) for a, p in self.connections]
        return SimpleNamespace(connections=connections, lookupds=self.lookupds)


def made(**more: str) -> tuple[Receiver, FakeReader, FakeClock]:
    base = {"topic": "t", "channel": "c", "recording": "/s", "lookupdHTTPAddresses": "l"}
    clock, reader = FakeClock(), FakeReader()
    receiver = Receiver(parse(SourceOptions, {**base, **more}).recorder(), clock=clock)
    receiver._readers = [reader]  # type: ignore[list-item]
    return receiver, reader, clock


def test_one_that_was_lost_is_missed_until_it_is_back_or_forgotten() -> None:
    receiver, reader, clock = made()
    reader.connections = [("a:4150", None), ("b:4150", None)]
    receiver._on_connected(0, "b:4150")
    assert (receiver.missing(), receiver.is_connected()) == ([], True)
    reader.connections = [("a:4150", None)]
    receiver._on_disconnected(0, "b:4150", "gone")
    assert receiver.missing() == ["b:4150"]
    clock.advance(REMEMBERED - 1)
    assert receiver.missing() == ["b:4150"], "an AvailableNow query has connectTimeoutMs to tell of it"
    receiver._on_disconnected(0, "b:4150", "refused")  # it is listed, so it was tried
    clock.advance(REMEMBERED - 1)
    assert receiver.missing() == ["b:4150"]
    clock.advance(1)
    assert receiver.missing() == []
    receiver._on_disconnected(0, "b:4150", "refused")
    reader.connections += [("b:4150", None)]
    receiver._on_connected(0, "b:4150")
    assert receiver.missing() == []


def test_what_is_kept_of_nsqds_that_come_and_go_has_an_end() -> None:
    receiver, reader, clock = made()
    for number in range(1000):
        reader.connections = [(f"n{number}:4150", None)]
        receiver._on_connected(0, f"n{number}:4150")
        reader.connections = []
        receiver._on_disconnected(0, f"n{number}:4150", "gone")
        clock.advance(60.0)
    assert len(receiver._lost) <= REMEMBERED / 60 + 1
    assert receiver.missing() == sorted(f"n{number}:4150" for number in range(986, 1000))


def test_one_that_is_waited_for_is_not_forgotten_meanwhile() -> None:
    receiver, _, clock = made(connectTimeoutMs="3600000")
    receiver._on_disconnected(0, "b:4150", "gone")
    clock.advance(7000.0)
    assert receiver.missing() == ["b:4150"]


def test_one_that_was_named_is_missed_for_good_and_by_each_reader() -> None:
    receiver, reader, clock = made(nsqdTCPAddresses="a,b", lookupdHTTPAddresses="", connectionsPerNsqd="2")
    receiver._readers += [other := FakeReader()]  # type: ignore[list-item]
    assert receiver.missing() == ["a:4150", "b:4150"]
    reader.connections = other.connections = [("a:4150", None)]
    receiver._on_connected(0, "a:4150")
    assert receiver.missing() == ["a:4150", "b:4150"]
    receiver._on_connected(1, "a:4150")
    clock.advance(10 * REMEMBERED)
    assert receiver.missing() == ["b:4150"]


def test_a_partition_that_another_nsqd_leads_now_is_not_missed() -> None:
    """It was for good, while the old leader had others: an AvailableNow query ended with an error half a minute on."""
    with YouzanBroker(nsqds=2) as cluster:
        cluster.youzan.create_topic("t", 4, replicas=2)
        cluster.youzan.create_channel("t", "c")
        given = {"topic": "t", "channel": "c", "recording": "/s", "dialect": "youzan"}
        receiver = Receiver(
            parse(SourceOptions, {**given, "lookupdHTTPAddresses": cluster.lookupd_http_address}).recorder()
        )
        receiver.start(lambda messages: None)
        try:
            wait_for(lambda: sum(map(len, receiver._subscribed.values())) == 4)
            old = cluster.youzan.leader("t", 0) or 0
            cluster.youzan.move_leader("t", 0, 1 - old)
            wait_for(lambda: bool(receiver._lost))
            wait_for(lambda: sum(map(len, receiver._subscribed.values())) == 4)
            assert receiver.missing() == []
            cluster.nodes[old].kill()
            wait_for(lambda: not receiver.missing() and len({a for a, _ in receiver._subscribed[0]}) == 1)
            assert receiver.is_connected()
        finally:
            receiver.stop(2.0)


def test_the_trouble_of_a_receiver_without_connections_names_what_nsqlookupd_answered() -> None:
    receiver, reader, _ = made()
    assert receiver.trouble() == "", "no poll has ended"
    reader.lookupds = {"l:4161": Health(True, None, None, 0, ())}
    assert receiver.trouble() == "no nsqd has topic t at l:4161"
    reader.lookupds["m:4161"] = Health(False, "refused", None, 2, ())
    assert receiver.trouble() == "nsqlookupd m:4161: refused"
    reader.connections = [("a:4150", None)]
    receiver._on_connected(0, "a:4150")
    assert receiver.trouble() == ""


def test_a_receiver_names_an_nsqlookupd_without_the_topic_and_an_address_without_one(
    cluster: Cluster,
) -> None:
    for address, wanted in ((cluster.lookupd_http_address, "no nsqd has topic t"), ("127.0.0.1:1", "nsqlookupd ")):
        given = {"topic": "t", "channel": "c", "recording": "/s", "lookupdHTTPAddresses": address}
        receiver = Receiver(parse(SourceOptions, given).recorder())
        receiver.start(lambda messages: None)
        try:
            wait_for(lambda r=receiver: bool(r.trouble()))
            assert receiver.trouble().startswith(wanted)
        finally:
            receiver.stop(5.0)


def test_an_empty_channel_is_an_error_that_names_the_option() -> None:
    with pytest.raises(OptionError, match=r"channel='': is empty"):
        made(channel="")
