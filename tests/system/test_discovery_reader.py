"""A Reader and a Writer whose nsqlookupds fail keep their connections and use the nsqds that are found."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.http_stub import Stub, scripted, stub


def lists(server: Stub, host: str, port: int) -> None:
    node = {"broadcast_address": host, "tcp_port": port, "http_port": 1, "hostname": "h", "version": "1.3.0"}
    server.answers["/lookup"] = (200, {"channels": [], "producers": [node]})
    server.answers["/nodes"] = (200, {"producers": [{**node, "topics": []}]})


def silent(connection: object) -> None:
    time.sleep(30)


@pytest.mark.rule("DISC-1")
@pytest.mark.rule("HB-1")
def test_a_silent_nsqlookupd_delays_no_message_and_no_heartbeat(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    with stub() as good, scripted(silent) as dead:
        lists(good, broker.host, broker.tcp_port)
        began = time.monotonic()
        with Reader(
            topic,
            "c",
            lambda message: seen.append(message.body),
            lookupd_http_addresses=[dead, good.address],
            lookupd_poll_interval=0.3,
            lookupd_timeout=40.0,
            heartbeat_interval=1.0,
        ) as reader:
            broker.publish(topic, b"first")
            wait_for(lambda: seen)
            assert time.monotonic() - began < 30.0  # the silent nsqlookupd delays nothing
            time.sleep(2.6)  # nsqd disconnects after two heartbeats without an answer
            broker.publish(topic, b"second")
            wait_for(lambda: len(seen) == 2)
            assert reader.stats().reconnects == 0
            (client,) = broker.stats(topic, "c")["clients"]
            assert client["message_count"] == 2


@pytest.mark.rule("PUB-4")
@pytest.mark.rule("CFG-2")
def test_a_writer_publishes_to_what_nsqlookupd_lists_beside_a_silent_one(broker: ServerHandle, topic: str) -> None:
    with stub() as good, scripted(silent) as dead:
        lists(good, broker.host, broker.tcp_port)
        with Writer(lookupd_http_addresses=[dead, good.address], lookupd_timeout=1.0) as writer:
            writer.publish(topic, b"x", timeout=20.0)  # for lookupd_timeout the silent one may be one of Youzan's
        with Writer(lookupd_http_addresses=[dead, good.address], dialect="nsq") as writer:
            writer.publish(topic, b"x", timeout=20.0)
        assert broker.stats(topic)["message_count"] == 2


@pytest.mark.rule("DISC-4")
@pytest.mark.rule("PUB-4")
def test_an_nsqlookupd_that_is_missing_at_the_start_is_queried_again_soon(broker: ServerHandle, topic: str) -> None:
    """With the default poll interval of a minute."""
    held = socket.socket()  # or another process might listen there meanwhile
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    address = f"127.0.0.1:{port}"
    seen: list[bytes] = []
    began = time.monotonic()
    with (
        held,
        Reader(topic, "c", lambda message: seen.append(message.body), lookupd_http_addresses=address),
        Writer(lookupd_http_addresses=address, publish_timeout=20.0) as writer,
    ):
        publication = writer.publish_nowait(topic, b"x")
        time.sleep(2.0)
        held.close()
        with stub(port=port) as server:
            lists(server, broker.host, broker.tcp_port)
            publication.result(20.0)
            wait_for(lambda: seen == [b"x"])
            assert time.monotonic() - began < 30.0  # the poll interval is 60 s
            time.sleep(0.5)
            targets = [request.path for request in server.requests]
    assert len(targets) <= 4, targets  # once found, at the interval


@pytest.mark.rule("DISC-4")
@pytest.mark.rule("PUB-4")
def test_a_new_nsqd_is_found_soon_while_a_publish_waits_for_one(broker: ServerHandle, topic: str) -> None:
    with stub() as server:
        lists(server, "127.0.0.1", 1)  # no process listens there
        with Writer(lookupd_http_addresses=server.address, dialect="nsq") as writer:
            publication = writer.publish_nowait(topic, b"x", timeout=40.0)
            wait_for(lambda: len(server.requests) > 2)
            lists(server, broker.host, broker.tcp_port)
            publication.result(30.0)  # the poll interval is 60 s


@pytest.mark.rule("DISC-6")
def test_nothing_is_remembered_of_nsqds_that_nobody_lists_any_more(broker: ServerHandle, topic: str) -> None:
    """An nsqlookupd that makes up ever new ones must not fill the memory."""
    with stub() as server:
        lists(server, "127.0.0.1", 1)
        options: dict[str, Any] = {"lookupd_http_addresses": server.address, "lookupd_poll_interval": 0.05}
        with Reader(topic, "c", print, **options) as reader:
            core: Any = reader._core
            for port in (1, 2, 3):  # no process listens there
                lists(server, "127.0.0.1", port)
                wait_for(lambda port=port: any(lost.port == port for lost in core.losses.reasons()))
            lists(server, broker.host, broker.tcp_port)
            wait_for(lambda: reader.stats().connections)
            wait_for(lambda: not core.losses.reasons())


@pytest.mark.rule("DISC-1")
@pytest.mark.rule("YZ-14")
def test_a_nsqlookupd_is_asked_for_the_topic_and_nothing_more() -> None:
    with stub() as plain:
        plain.answers["/lookup"] = (200, {"channels": [], "producers": []})
        with Reader("t", "ch", print, lookupd_http_addresses=plain.address, lookupd_poll_interval=0.1):
            wait_for(lambda: len(plain.requests) > 3)
    assert {request.target for request in plain.requests} == {"/lookup?topic=t"}
