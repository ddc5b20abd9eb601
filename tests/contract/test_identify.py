"""IDENTIFY: ranges of its values, the reply, and the effect on the connection."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.conftest import Connect, MakeBroker
from tests.programs import wait_for
from tests.rawclient import OK, identify, mpub, sized
from tests.servers import ServerHandle

DEFAULTS = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


@pytest.mark.rule("NEG-3")
def test_the_reply_states_the_limits_and_what_was_granted(broker: ServerHandle, connect: Connect) -> None:
    reply = connect(broker).identify()
    assert reply == DEFAULTS
    assert list(reply) == list(DEFAULTS)


@pytest.mark.rule("NEG-2")
def test_without_feature_negotiation_the_reply_is_ok(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.send(identify(client_id="me", snappy=True))
    assert client.frame() == OK
    client.sync()  # and no upgrade follows


@pytest.mark.rule("NEG-1")
def test_stats_show_who_a_client_says_it_is(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.identify(client_id="me", hostname="here.example", user_agent="tests/1.0", sample_rate=7)
    client.subscribe(topic, "c")
    client.sync()
    me = broker.stats(topic, "c")["clients"][0]
    host, port = client.socket.getsockname()[:2]
    shown = {name: me[name] for name in ("client_id", "hostname", "user_agent", "sample_rate", "version", "state")}
    assert shown == {
        "client_id": "me",
        "hostname": "here.example",
        "user_agent": "tests/1.0",
        "sample_rate": 7,
        "version": "V2",
        "state": 3,
    }
    assert me["remote_address"] == f"{host}:{port}"
    assert (me["tls"], me["snappy"], me["deflate"]) == (False, False, False)


def test_a_client_that_does_not_identify_is_shown_by_its_address(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    me = broker.stats(topic, "c")["clients"][0]
    assert (me["client_id"], me["hostname"], me["user_agent"]) == ("127.0.0.1", "127.0.0.1", "")


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"heartbeat_interval": 1000}, {}),
    ({"heartbeat_interval": 60000}, {}),
    ({"heartbeat_interval": 0}, {}),
    ({"heartbeat_interval": -1}, {}),
    ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
    ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
    ({"output_buffer_size": 0}, {"output_buffer_size": 16384}),
    ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
    ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
    ({"output_buffer_timeout": 30000}, {"output_buffer_timeout": 30000}),
    ({"output_buffer_timeout": 0}, {"output_buffer_timeout": 250}),
    ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
    ({"sample_rate": 0}, {"sample_rate": 0}),
    ({"sample_rate": 99}, {"sample_rate": 99}),
    ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
    ({"msg_timeout": 900000}, {"msg_timeout": 900000}),
    ({"msg_timeout": 0}, {"msg_timeout": 60000}),
    ({"deflate_level": 3}, {"deflate_level": 6}),
    ({"tls_v1": True}, {"tls_v1": False}),
    ({"unknown": [1, {"two": 3}], "topology_zone": "z", "topology_region": "r"}, {}),
    ({"short_id": "s", "long_id": "l"}, {}),
]


@pytest.mark.parametrize(("asked", "granted"), ACCEPTED, ids=[str(asked) for asked, _ in ACCEPTED])
@pytest.mark.rule("NEG-3")
def test_a_value_in_range_is_granted(
    broker: ServerHandle, connect: Connect, asked: dict[str, Any], granted: dict[str, Any]
) -> None:
    assert connect(broker).identify(**asked) == {**DEFAULTS, **granted}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"heartbeat_interval": 999}, "heartbeat interval (999) is invalid"),
    ({"heartbeat_interval": 60001}, "heartbeat interval (60001) is invalid"),
    ({"heartbeat_interval": -2}, "heartbeat interval (-2) is invalid"),
    ({"output_buffer_size": 63}, "output buffer size (63) is invalid"),
    ({"output_buffer_size": 65537}, "output buffer size (65537) is invalid"),
    ({"output_buffer_timeout": 24}, "output buffer timeout (24) is invalid"),
    ({"output_buffer_timeout": 30001}, "output buffer timeout (30001) is invalid"),
    ({"sample_rate": -1}, "sample rate (-1) is invalid"),
    ({"sample_rate": 100}, "sample rate (100) is invalid"),
    ({"msg_timeout": 999}, "msg timeout (999) is invalid"),
    ({"msg_timeout": 900001}, "msg timeout (900001) is invalid"),
    ({"heartbeat_interval": 1500.5}, "failed to decode JSON body"),
    ({"heartbeat_interval": "1000"}, "failed to decode JSON body"),
    ({"client_id": 5}, "failed to decode JSON body"),
    ({"snappy": 1}, "failed to decode JSON body"),
]


@pytest.mark.parametrize(("asked", "text"), REFUSED, ids=[f"{asked}" for asked, _ in REFUSED])
@pytest.mark.rule("NEG-1")
@pytest.mark.rule("ERR-2")
def test_a_value_out_of_range_closes_the_connection(
    broker: ServerHandle, connect: Connect, asked: dict[str, Any], text: str
) -> None:
    client = connect(broker)
    client.send(identify(feature_negotiation=True, **asked))
    assert client.error() == f"E_BAD_BODY IDENTIFY {text}"
    assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (sized(b"{"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (sized(b"[]"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (sized(b"{} x"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"\0\0\0\0", "E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"\xff\xff\xff\xff", "E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"\x00\x50\x00\x01", "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"),
    ],
)
@pytest.mark.rule("ERR-2")
def test_a_bad_body_closes_the_connection(broker: ServerHandle, connect: Connect, sent: bytes, text: str) -> None:
    client = connect(broker)
    client.send(b"IDENTIFY\n", sent)
    assert client.error() == text
    assert client.is_closed()


def test_a_body_cut_short_is_an_error(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.send(b"IDENTIFY\n", b"\0\0\0\x09{}")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.error() == "E_BAD_BODY IDENTIFY failed to read body"
    assert client.is_closed()


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"CLIENT_ID": "x", "Hostname": "y"}', b' {"a": null} '])
def test_any_json_object_will_do(broker: ServerHandle, connect: Connect, body: bytes) -> None:
    assert connect(broker).ask(b"IDENTIFY\n", sized(body)) == b"OK"


def test_identify_may_come_again_before_sub(broker: ServerHandle, connect: Connect) -> None:
    client = connect(broker)
    client.identify(client_id="one")
    assert client.identify(client_id="two") == DEFAULTS


@pytest.mark.rule("NEG-4")
def test_what_the_server_has_switched_off_is_not_granted(make_broker: MakeBroker, connect: Connect) -> None:
    server = make_broker(snappy=False, deflate=False)
    client = connect(server)
    reply = client.identify(snappy=True, tls_v1=True)
    assert (reply["snappy"], reply["tls_v1"]) == (False, False)
    client.sync()
    client = connect(server)
    assert client.identify(deflate=True, deflate_level=9)["deflate"] is False
    client.sync()


@pytest.mark.rule("NEG-3")
def test_the_servers_limits_are_told(make_broker: MakeBroker, connect: Connect) -> None:
    server = make_broker(
        max_rdy_count=7,
        msg_timeout=2.0,
        max_msg_timeout=30.0,
        max_deflate_level=4,
        output_buffer_timeout=0.1,
        max_heartbeat_interval=5.0,
    )
    client = connect(server)
    expected = {
        "max_rdy_count": 7,
        "msg_timeout": 2000,
        "max_msg_timeout": 30000,
        "max_deflate_level": 4,
        "deflate_level": 4,
        "output_buffer_timeout": 100,
    }
    assert client.identify() == {**DEFAULTS, **expected}
    client = connect(server)
    client.send(identify(feature_negotiation=True, heartbeat_interval=5001))
    assert client.error() == "E_BAD_BODY IDENTIFY heartbeat interval (5001) is invalid"


@pytest.mark.rule("SEC-5")
@pytest.mark.rule("NEG-3")
def test_a_sampled_client_gets_about_its_share(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    assert client.identify(sample_rate=30)["sample_rate"] == 30
    for _ in range(4):
        client.ask(mpub(topic, *[b"x"] * 500))
    client.subscribe(topic, "c", ready=2500)
    wait_for(lambda: broker.stats(topic, "c")["depth"] == 0)
    count = broker.stats(topic, "c")["in_flight_count"]
    for _ in range(count):
        client.message()
    assert 480 <= count <= 760  # 30 % of 2,000, over 5 standard deviations either way; nsqd sends 31 %


@pytest.mark.rule("MSG-5")
def test_a_client_may_have_a_message_timeout_of_its_own(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.prepare(topic, "c")
    client = connect(broker)
    assert client.identify(msg_timeout=1000)["msg_timeout"] == 1000
    client.subscribe(topic, "c", ready=1)
    broker.publish(topic, b"x")
    assert client.message().attempts == 1
    assert client.message().attempts == 2


def test_output_is_held_back_for_the_time_asked(broker: ServerHandle, connect: Connect, topic: str) -> None:
    prompt, lazy = connect(broker), connect(broker)
    prompt.identify(output_buffer_size=-1)
    lazy.identify(output_buffer_timeout=1000)
    prompt.subscribe(topic, "prompt", ready=100)
    lazy.subscribe(topic, "lazy", ready=100)
    prompt.sync()
    lazy.sync()
    broker.publish(topic, b"x")
    assert prompt.message().body == b"x"
    assert lazy.message().body == b"x"
