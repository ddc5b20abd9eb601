"""nsqd's HTTP API: endpoints, shapes, errors."""

from __future__ import annotations

import struct
import time

import pytest

from tests.conftest import Connect, MakeBroker
from tests.programs import wait_for
from tests.rawclient import sized
from tests.servers import ServerHandle

V1 = "nsq; version=1.0"
JSON = "application/json; charset=utf-8"


def _message(text: str) -> bytes:
    return b'{"message":"%s"}' % text.encode()


def test_ping_says_ok_in_plain_text(broker: ServerHandle) -> None:
    answer = broker.http("GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers


def test_info_describes_the_server(broker: ServerHandle) -> None:
    answer = broker.http("GET", "/info")
    assert answer.status == 200
    assert (answer.headers["content-type"], answer.headers["x-nsq-content-type"]) == (JSON, V1)
    info = answer.json()
    assert list(info) == [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
    ]
    assert (info["version"], info["broadcast_address"]) == ("1.3.0", "127.0.0.1")
    assert (info["tcp_port"], info["http_port"]) == (broker.tcp_port, broker.http_port)
    assert abs(time.time() - info["start_time"]) < 60
    assert info["max_heartbeat_interval"] == 60 * 10**9
    assert info["max_output_buffer_timeout"] == 30 * 10**9
    assert (info["max_output_buffer_size"], info["max_deflate_level"]) == (65536, 6)


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("GET", "/", 404, "NOT_FOUND"),
        ("GET", "/pub?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/ping", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/topic/delete?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a!b", 400, "INVALID_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/delete?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/delete?topic=a!b", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/empty", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/empty?topic=a!b", 400, "INVALID_TOPIC"),
        ("POST", "/topic/empty?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/pause", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/pause?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/unpause?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=a!b&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=a!b", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/delete?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/delete?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/empty?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/pause?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/unpause?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/pause?topic=t", 400, "MISSING_ARG_CHANNEL"),
    ],
)
def test_a_bad_request_is_a_status_and_a_message(
    broker: ServerHandle, method: str, path: str, status: int, text: str
) -> None:
    assert broker.http("POST", "/topic/create?topic=t").status == 200
    answer = broker.http(method, path)
    assert (answer.status, answer.body) == (status, _message(text))
    assert (answer.headers["content-type"], answer.headers["x-nsq-content-type"]) == (JSON, V1)


def test_pub_takes_the_body_as_it_is(broker: ServerHandle, connect: Connect, topic: str) -> None:
    body = bytes(range(256))
    answer = broker.http("POST", f"/pub?topic={topic}", body)
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["x-nsq-content-type"] == V1
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    message = client.message()
    assert (message.body, message.attempts) == (body, 1)


def test_pub_with_defer_holds_the_message_back(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.prepare(topic, "c")
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    start = time.monotonic()
    assert broker.http("POST", f"/pub?topic={topic}&defer=400", b"x").body == b"OK"
    assert client.message().body == b"x"
    assert time.monotonic() - start >= 0.39


@pytest.mark.parametrize(
    ("query", "body", "status", "text"),
    [
        ("topic=t", b"", 400, "MSG_EMPTY"),
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("topic=a!b", b"x", 400, "INVALID_TOPIC"),
        ("topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("topic=t", b"x" * 101, 413, "MSG_TOO_BIG"),
    ],
)
def test_a_bad_pub_is_refused(make_broker: MakeBroker, query: str, body: bytes, status: int, text: str) -> None:
    server = make_broker(max_msg_size=100)
    answer = server.http("POST", f"/pub?{query}", body)
    assert (answer.status, answer.body) == (status, _message(text))
    assert server.stats("t").get("message_count", 0) == 0


def test_mpub_takes_a_message_from_each_line(broker: ServerHandle, connect: Connect, topic: str) -> None:
    assert broker.http("POST", f"/mpub?topic={topic}", b"one\n\ntwo\r\nthree").body == b"OK"
    client = connect(broker)
    client.subscribe(topic, "c", ready=5)
    assert sorted(client.message().body for _ in range(3)) == [b"one", b"three", b"two\r"]
    assert client.is_silent(0.1)


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_mpub_takes_the_binary_form_of_the_command(
    broker: ServerHandle, connect: Connect, topic: str, value: str
) -> None:
    body = struct.pack(">i", 2) + sized(b"a\nb", b"c")
    assert broker.http("POST", f"/mpub?topic={topic}&binary={value}", body).body == b"OK"
    client = connect(broker)
    client.subscribe(topic, "c", ready=5)
    assert sorted(client.message().body for _ in range(2)) == [b"a\nb", b"c"]


@pytest.mark.parametrize("value", ["false", "0"])
def test_binary_may_be_switched_off_by_name(broker: ServerHandle, topic: str, value: str) -> None:
    assert broker.http("POST", f"/mpub?topic={topic}&binary={value}", b"a\nb\nc").body == b"OK"
    assert broker.stats(topic)["message_count"] == 3


@pytest.mark.parametrize(
    ("query", "body", "status", "text"),
    [
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("topic=a!b", b"x", 400, "INVALID_TOPIC"),
        ("topic=t", b"x" * 101, 413, "MSG_TOO_BIG"),
        ("topic=t", b"x\n" * 501, 413, "BODY_TOO_BIG"),
        ("topic=t&binary=true", b"", 413, "BAD_BODY"),
        ("topic=t&binary=true", b"\0\0\0\0", 413, "BAD_BODY"),
        ("topic=t&binary=true", b"\0\0\0\1" + sized(b""), 413, "BAD_MESSAGE"),
        ("topic=t&binary=true", b"\0\0\0\1\0\0\0\5abc", 413, "BAD_MESSAGE"),
        ("topic=t&binary=true", b"\0\0\0\2" + sized(b"x", b"y" * 101), 413, "BAD_MESSAGE"),
    ],
)
def test_a_bad_mpub_is_refused_whole(make_broker: MakeBroker, query: str, body: bytes, status: int, text: str) -> None:
    server = make_broker(max_msg_size=100, max_body_size=1000)
    answer = server.http("POST", f"/mpub?{query}", body)
    assert (answer.status, answer.body) == (status, _message(text))
    assert server.stats("t").get("message_count", 0) == 0


def test_topics_and_channels_are_made_and_deleted(broker: ServerHandle, topic: str) -> None:
    answer = broker.http("POST", f"/topic/create?topic={topic}")
    assert (answer.status, answer.body, answer.headers["x-nsq-content-type"]) == (200, b"", V1)
    for _ in range(2):  # a second time does no harm
        assert broker.http("POST", f"/channel/create?topic={topic}&channel=c").body == b""
    assert [part["channel_name"] for part in broker.stats(topic)["channels"]] == ["c"]
    assert broker.http("POST", f"/channel/delete?topic={topic}&channel=c").body == b""
    assert broker.stats(topic)["channels"] == []
    assert broker.http("POST", f"/topic/delete?topic={topic}").body == b""
    assert broker.stats(topic) == {}


def test_emptying_drops_what_is_queued(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"a", b"b")
    assert broker.stats(topic)["depth"] == 2
    assert broker.http("POST", f"/topic/empty?topic={topic}").body == b""
    assert broker.stats(topic)["depth"] == 0
    broker.http("POST", f"/topic/pause?topic={topic}")
    broker.http("POST", f"/channel/create?topic={topic}&channel=c")
    broker.http("POST", f"/topic/unpause?topic={topic}")
    broker.publish(topic, b"c")
    wait_for(lambda: broker.stats(topic, "c")["depth"] == 1)
    assert broker.http("POST", f"/channel/empty?topic={topic}&channel=c").body == b""
    assert broker.stats(topic, "c")["depth"] == 0


def test_stats_have_the_shape_tools_rely_on(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    broker.publish(topic, b"hello")
    client.message()
    found = broker.stats()
    assert list(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (found["version"], found["health"], found["producers"]) == ("1.3.0", "OK", None)
    part = broker.stats(topic)
    latency = {"count": 0, "percentiles": None}
    channels = part.pop("channels")
    assert part == {
        "topic_name": topic,
        "depth": 0,
        "backend_depth": 0,
        "message_count": 1,
        "message_bytes": 5,
        "paused": False,
        "e2e_processing_latency": latency,
    }
    (clients,) = [channel.pop("clients") for channel in channels]
    assert channels == [
        {
            "channel_name": "c",
            "depth": 0,
            "backend_depth": 0,
            "in_flight_count": 1,
            "deferred_count": 0,
            "message_count": 1,
            "requeue_count": 0,
            "timeout_count": 0,
            "client_count": 1,
            "paused": False,
            "e2e_processing_latency": latency,
        }
    ]
    (me,) = clients
    assert abs(me.pop("connect_ts") - time.time()) < 60
    assert me.pop("remote_address").startswith("127.0.0.1:")
    assert me == {
        "client_id": "127.0.0.1",
        "hostname": "127.0.0.1",
        "version": "V2",
        "state": 3,
        "ready_count": 1,
        "in_flight_count": 1,
        "message_count": 1,
        "finish_count": 0,
        "requeue_count": 0,
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "user_agent": "",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


def test_stats_can_be_narrowed(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    broker.http("POST", f"/channel/create?topic={topic}&channel=d")
    broker.http("POST", f"/topic/create?topic={topic}_b")
    names = [part["topic_name"] for part in broker.http("GET", "/stats?format=json").json()["topics"]]
    assert names == [topic, f"{topic}_b"]
    one = broker.http("GET", f"/stats?format=json&topic={topic}&channel=d").json()["topics"]
    assert [(part["topic_name"], [c["channel_name"] for c in part["channels"]]) for part in one] == [(topic, ["d"])]
    none = broker.http("GET", "/stats?format=json&topic=none").json()
    assert (none["topics"], none["producers"]) == (None, None)
    bare = broker.http("GET", "/stats?format=json&include_clients=false&include_mem=false").json()
    assert "memory" not in bare
    channel = bare["topics"][0]["channels"][0]
    assert (channel["client_count"], channel["clients"]) == (1, None)


def test_names_may_be_percent_encoded(broker: ServerHandle, topic: str) -> None:
    broker.http("POST", f"/topic/create?topic={topic}%23ephemeral")
    assert broker.stats(f"{topic}#ephemeral")["topic_name"] == f"{topic}#ephemeral"
