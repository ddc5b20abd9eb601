"""Faults of the embedded broker, each as a client sees it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator

import pytest

from gnsq_lite.broker import Broker
from tests.rawclient import HEARTBEAT, OK, RawClient, identify, mpub, pub
from tests.servers import http_call


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.nsqd_tcp_address) as made:
        made.sync()
        yield made


def test_a_command_can_be_answered_with_an_error(broker: Broker, client: RawClient) -> None:
    broker.faults.answer("PUB", b"E_PUB_FAILED PUB failed disk full", times=1)
    client.send(pub("t", b"x"))
    assert client.error() == "E_PUB_FAILED PUB failed disk full"
    assert client.is_closed()
    with RawClient(broker.nsqd_tcp_address) as other:
        assert other.ask(pub("t", b"x")) == b"OK"


def test_a_command_can_be_ignored_or_only_its_answer_lost(broker: Broker, client: RawClient) -> None:
    broker.faults.ignore("PUB")
    broker.faults.drop_answer("PUB")
    client.send(pub("t", b"1"), pub("t", b"2"))
    assert client.is_silent(0.1)
    assert client.ask(pub("t", b"3")) == b"OK"
    (topic,) = (t for t in broker.node.stats()["topics"] if t["topic_name"] == "t")
    assert topic["message_count"] == 2


@pytest.mark.parametrize("carry_out", [False, True])
def test_a_command_can_end_the_connection_before_or_after_it_is_carried_out(
    broker: Broker, client: RawClient, carry_out: bool
) -> None:
    broker.faults.disconnect_on("PUB", carry_out=carry_out)
    client.send(pub("t", b"x"))
    assert client.is_closed()
    topics = [t["topic_name"] for t in broker.node.stats()["topics"] if "#" not in t["topic_name"]]
    assert topics == (["t"] if carry_out else [])


def test_answers_can_be_late(broker: Broker, client: RawClient) -> None:
    broker.faults.delay(0.3, "PUB")
    start = time.monotonic()
    assert client.ask(pub("t", b"x")) == b"OK"
    assert time.monotonic() - start >= 0.29


@pytest.mark.parametrize("size", [0, 4, 9, 10, 15])
def test_a_connection_can_be_cut_within_a_frame(broker: Broker, size: int) -> None:
    broker.faults.cut_after_bytes(size)
    with RawClient(broker.nsqd_tcp_address) as client:
        client.send(pub("t", b"x"), pub("t", b"y"))
        data = b""
        while part := client.socket.recv(100):
            data += part
    assert data == (b"\0\0\0\x06\0\0\0\0OK" * 2)[:size]
    with RawClient(broker.nsqd_tcp_address) as client:
        client.sync()


@pytest.mark.parametrize("count", [1, 3])
def test_a_connection_can_be_cut_after_so_many_messages(broker: Broker, count: int) -> None:
    with RawClient(broker.nsqd_tcp_address) as producer:
        producer.ask(mpub("t", *[b"%d" % number for number in range(5)]))
    broker.faults.cut_after_messages(count)
    for expected in (count, 5):  # the second connection is not cut
        with RawClient(broker.nsqd_tcp_address) as client:
            client.identify(msg_timeout=1000)
            client.subscribe("t", "c", ready=5)
            bodies = [client.message().body for _ in range(expected)]
            assert len(set(bodies)) == expected
            if expected == count:
                assert client.is_closed()


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_the_answer_to_a_message_can_be_refused_and_the_connection_stays(
    broker: Broker, client: RawClient, verb: str
) -> None:
    client.ask(pub("t", b"x"))
    client.subscribe("t", "c", ready=1)
    message = client.message()
    broker.faults.refuse(verb, "no")
    command = f"{verb} {message.id.decode()}" + (" 0" if verb == "REQ" else "")
    client.send(command.encode() + b"\n")
    assert client.error() == f"E_{verb}_FAILED {verb} failed no"
    client.send(command.encode() + b"\nCLS\n")
    assert client.frame() == (0, b"CLOSE_WAIT")


def test_a_refused_publish_closes_the_connection(broker: Broker, client: RawClient) -> None:
    broker.faults.refuse("PUB")
    client.send(pub("t", b"x"))
    assert client.error() == "E_PUB_FAILED PUB failed refused by a fault"
    assert client.is_closed()


def test_a_silent_nsqd_takes_everything_and_says_nothing(broker: Broker) -> None:
    broker.faults.go_silent()
    with RawClient(broker.nsqd_tcp_address) as client:
        client.send(identify(heartbeat_interval=2000))
        assert client.is_silent(2.5)  # after the first heartbeat is due, and well before nsqd would close at 4 s
    broker.faults.clear()
    with RawClient(broker.nsqd_tcp_address) as client:
        client.sync()


def test_connections_can_be_refused(broker: Broker) -> None:
    broker.faults.refuse_connections()
    try:
        with RawClient(broker.nsqd_tcp_address, magic=b"") as client:
            assert client.is_closed()
    except ConnectionResetError:
        pass  # within connect() already
    broker.faults.clear()
    with RawClient(broker.nsqd_tcp_address) as client:
        client.sync()


def test_heartbeats_can_be_stopped(broker: Broker, client: RawClient) -> None:
    client.answers_heartbeats = False
    client.identify(heartbeat_interval=2000)
    assert client.frame() == HEARTBEAT
    broker.faults.stop_heartbeats()
    client.send(b"NOP\n")
    assert client.is_silent(2.3)


@pytest.mark.rule("NEG-2")
def test_identify_can_be_answered_as_by_a_very_old_nsqd(broker: Broker, client: RawClient) -> None:
    broker.faults.skip_negotiation()
    client.send(identify(feature_negotiation=True, snappy=True))
    assert client.frame() == OK
    assert client.ask(pub("t", b"x")) == b"OK"


def test_features_can_be_refused(broker: Broker, client: RawClient) -> None:
    broker.faults.refuse_features("snappy", "sample_rate")
    reply = client.identify(snappy=True, sample_rate=50)
    assert (reply["snappy"], reply["sample_rate"]) == (False, 0)


def test_any_frame_and_any_bytes_can_be_sent(broker: Broker, client: RawClient) -> None:
    broker.faults.send_frame(7, b"what?")
    assert client.frame() == (7, b"what?")
    broker.faults.send_raw(b"HTTP/1.1 400 Bad Request\r\n")
    assert client.socket.recv(100).startswith(b"HTTP/1.1 400")


def test_what_is_sent_can_be_late_and_in_pieces(broker: Broker, client: RawClient) -> None:
    broker.faults.delay_output(0.2)
    start = time.monotonic()
    client.sync()
    assert time.monotonic() - start >= 0.19
    broker.faults.clear()
    broker.faults.send_in_pieces(1)
    client.send(pub("t", b"x"))
    assert len(client.socket.recv(100)) < 10


# -- HTTP -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("DISC-6")
def test_lookups_can_fail_be_late_and_be_endless(broker: Broker) -> None:
    (lookupd,) = broker.lookupds
    lookupd.http_faults.answer("/lookup", status=500, body=b"no", times=1)
    assert http_call(lookupd.http_address, "GET", "/lookup?topic=t").status == 500
    assert http_call(lookupd.http_address, "GET", "/lookup?topic=t").status == 404
    lookupd.http_faults.answer("*", status=200, body=b"<html>")
    assert http_call(lookupd.http_address, "GET", "/topics").body == b"<html>"
    lookupd.http_faults.clear()
    lookupd.http_faults.delay(0.3, "/topics")
    start = time.monotonic()
    assert json.loads(http_call(lookupd.http_address, "GET", "/topics").body) == {"topics": []}
    assert time.monotonic() - start >= 0.29
    lookupd.http_faults.flood("/nodes")
    host, port = lookupd.http_address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/nodes")
    assert len(connection.getresponse().read(10_000_000)) == 10_000_000
    connection.close()


def test_a_lookupd_can_stop_and_come_back_and_knows_its_nsqds(broker: Broker, client: RawClient) -> None:
    (lookupd,) = broker.lookupds
    client.ask(pub("t", b"x"))
    lookupd.stop()
    with pytest.raises(ConnectionRefusedError):
        http_call(lookupd.http_address, "GET", "/ping")
    lookupd.restart()
    producers = http_call(lookupd.http_address, "GET", "/lookup?topic=t").json()["producers"]
    assert [p["tcp_port"] for p in producers] == [broker.tcp_address[1]]


def test_a_killed_node_leaves_the_lookups_unless_it_stays_registered() -> None:
    with Broker(nsqds=2) as broker:
        for node in broker.nodes:
            with RawClient(node.nsqd_tcp_address) as client:
                client.ask(pub("t", b"x"))

        def listed() -> list[int]:
            found = http_call(broker.lookupd_http_address, "GET", "/lookup?topic=t").json()["producers"]
            return sorted(p["tcp_port"] for p in found)

        ports = sorted(node.tcp_address[1] for node in broker.nodes)
        assert listed() == ports
        broker.nodes[0].kill(stay_registered=True)
        assert listed() == ports
        broker.nodes[1].kill()
        assert listed() == [broker.nodes[0].tcp_address[1]]
        for node in broker.nodes:
            node.restart()
        assert listed() == ports
