"""PUB, MPUB, DPUB: what nsqd answers, and what becomes of the messages."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

from tests.conftest import Connect, MakeBroker
from tests.rawclient import OK, dpub, mpub, pub, sized
from tests.servers import ServerHandle


@pytest.mark.rule("PUB-1")
@pytest.mark.rule("WIRE-3")
def test_a_published_message_arrives_with_its_time_its_attempts_and_a_hex_id(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    before = time.time_ns()
    assert client.ask(pub(topic, b"hello")) == b"OK"
    after = time.time_ns()
    client.subscribe(topic, "c", ready=1)
    message = client.message()
    assert message.body == b"hello"
    assert message.attempts == 1
    assert before <= message.timestamp_ns <= after
    assert len(message.id) == 16
    assert set(message.id) <= set(b"0123456789abcdef")


def test_bodies_keep_every_byte(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    body = bytes(range(256)) * 3 + b"\n\r\0"
    assert client.ask(pub(topic, body)) == b"OK"
    client.subscribe(topic, "c", ready=1)
    assert client.message().body == body


def test_answers_to_pipelined_publishes_come_in_order(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.send(*[pub(topic, b"%d" % number) for number in range(100)])
    assert [client.frame() for _ in range(100)] == [OK] * 100
    client.subscribe(topic, "c", ready=100)
    assert sorted(int(client.message().body) for _ in range(100)) == list(range(100))


@pytest.mark.rule("WIRE-5")
def test_a_command_may_arrive_byte_by_byte(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker, magic=b"")
    for byte in b"  V2" + pub(topic, b"hello"):
        client.send(bytes([byte]))
    assert client.frame() == OK


def test_a_line_may_end_in_carriage_return_and_newline(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    assert client.ask(b"PUB %s\r\n" % topic.encode() + sized(b"x")) == b"OK"
    assert client.ask(b"SUB %s c\r\n" % topic.encode()) == b"OK"


def test_further_words_after_the_topic_are_ignored(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    assert client.ask(b"PUB %s 3 words\n" % topic.encode() + sized(b"x")) == b"OK"
    assert broker.stats(topic)["message_count"] == 1


@pytest.mark.rule("WIRE-8")
def test_mpub_publishes_each_body_in_one_command(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    assert client.ask(mpub(topic, b"one", b"two", b"three")) == b"OK"
    client.subscribe(topic, "c", ready=3)
    messages = [client.message() for _ in range(3)]
    assert sorted(message.body for message in messages) == [b"one", b"three", b"two"]
    assert len({message.id for message in messages}) == 3


@pytest.mark.rule("WIRE-8")
def test_mpub_with_one_bad_message_publishes_none(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.send(mpub(topic, b"good", b""))
    assert client.error() == "E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    assert client.is_closed()
    assert broker.stats(topic)["message_count"] == 0


def test_dpub_holds_the_message_back(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.prepare(topic, "c")
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    start = time.monotonic()
    assert client.ask(dpub(topic, 1500, b"later")) == b"OK"
    assert client.is_silent(0.1)
    found = broker.stats(topic, "c")
    assert (found["deferred_count"], found["message_count"], found["depth"]) == (1, 1, 0)
    message = client.message()
    assert (message.body, message.attempts) == (b"later", 1)
    assert time.monotonic() - start >= 1.49
    client.finish(message)
    client.sync()
    assert broker.stats(topic, "c")["deferred_count"] == 0


def test_dpub_with_no_delay_delivers_at_once(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    client.send(dpub(topic, 0, b"now"))
    frames = [client.frame(), client.frame()]
    assert OK in frames
    assert any(body.endswith(b"now") for _, body in frames)


LONG_NAME = "x" * 64


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", LONG_NAME, "e#ephemeral", "x" * 54 + "#ephemeral"])
@pytest.mark.rule("WIRE-6")
def test_a_good_topic_name_is_taken(broker: ServerHandle, connect: Connect, name: str) -> None:
    assert connect(broker).ask(pub(name, b"x")) == b"OK"


@pytest.mark.parametrize("name", ["", LONG_NAME + "x", "a!b", "a#b", "a#ephemeral#ephemeral", "x" * 55 + "#ephemeral"])
@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB"])
@pytest.mark.rule("WIRE-6")
def test_a_bad_topic_name_closes_the_connection(broker: ServerHandle, connect: Connect, name: str, verb: str) -> None:
    client = connect(broker)
    rest = " 0" if verb == "DPUB" else ""
    client.send(f"{verb} {name}{rest}\n".encode())
    twice = "E_BAD_TOPIC " if verb == "MPUB" else ""  # nsqd/protocol_v2.go:792 @v1.3.0
    assert client.error() == f'E_BAD_TOPIC {twice}{verb} topic name "{name}" is not valid'
    assert client.is_closed()


def _size(number: int) -> bytes:
    return struct.pack(">i", number)


TOO_LONG = 1024 * 1024 + 1
REFUSED = [
    (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    (b"PUB t\n" + _size(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n" + _size(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"PUB t\n" + _size(TOO_LONG), "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"DPUB t 0\n" + _size(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
    (b"DPUB t 0\n" + _size(-1), "E_BAD_MESSAGE DPUB invalid message body size -1"),
    (b"DPUB t 0\n" + _size(TOO_LONG), "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
    (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
    (b"DPUB t -1\n", "E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 1.5\n", "E_INVALID DPUB could not parse timeout 1.5"),
    (b"DPUB t 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (b"MPUB t\n" + _size(0), "E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB t\n" + _size(-1), "E_BAD_BODY MPUB invalid body size -1"),
    (b"MPUB t\n" + _size(5 * 1024 * 1024 + 1), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    (b"MPUB t\n" + _size(8) + _size(0), "E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB t\n" + _size(8) + _size(-1), "E_BAD_BODY MPUB invalid message count -1"),
    (b"MPUB t\n" + _size(8) + _size(1048576), "E_BAD_BODY MPUB invalid message count 1048576"),
    (b"MPUB t\n" + _size(8) + _size(1) + _size(0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (b"MPUB t\n" + _size(8) + _size(1) + _size(-5), "E_BAD_MESSAGE MPUB invalid message(0) body size -5"),
    (b"MPUB t\n" + _size(8) + _size(1) + _size(TOO_LONG), "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"),
]


@pytest.mark.parametrize(("sent", "text"), REFUSED, ids=[text for _, text in REFUSED])
@pytest.mark.rule("ERR-2")
@pytest.mark.rule("WIRE-8")
def test_a_bad_publish_is_an_error_and_the_connection_closes(
    broker: ServerHandle, connect: Connect, sent: bytes, text: str
) -> None:
    client = connect(broker)
    client.send(sent)
    assert client.error() == text
    assert client.is_closed()


@pytest.mark.parametrize("delay_ms", [1, 3_600_000])
def test_both_ends_of_dpubs_range_are_taken(broker: ServerHandle, connect: Connect, topic: str, delay_ms: int) -> None:
    assert connect(broker).ask(dpub(topic, delay_ms, b"x")) == b"OK"


def test_the_largest_body_is_taken(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    client = connect(make_broker(max_msg_size=1000))
    assert client.ask(pub(topic, b"x" * 1000)) == b"OK"
    client.send(pub(topic, b"x" * 1001))
    assert client.error() == "E_BAD_MESSAGE PUB message too big 1001 > 1000"


def test_the_largest_batch_is_taken(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(max_body_size=1000)
    client = connect(server)
    assert client.ask(mpub(topic, b"x" * 492, b"y" * 496)) == b"OK"  # 4 + 4 + 492 + 4 + 496 = 1000
    client.send(mpub(topic, b"x" * 493, b"y" * 496))
    assert client.error() == "E_BAD_BODY MPUB body too big 1001 > 1000"
    assert server.stats(topic)["message_count"] == 2


def test_publishes_on_a_subscribed_connection_are_answered(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    assert client.ask(pub(topic, b"x")) == b"OK"


def test_stats_count_what_a_producer_sent(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.ask(pub(topic, b"abc"))
    client.ask(mpub(topic, b"de", b"f"))
    found = broker.stats(topic)
    assert (found["message_count"], found["message_bytes"], found["depth"]) == (3, 6, 3)
    producers: list[dict[str, Any]] = broker.stats()["producers"]
    assert [producer["pub_counts"] for producer in producers] == [[{"topic": topic, "count": 3}]]


@pytest.mark.rule("PUB-2")
def test_what_was_answered_with_ok_survives_a_restart(broker: ServerHandle, connect: Connect, topic: str) -> None:
    assert connect(broker).ask(pub(topic, b"kept")) == b"OK"
    broker.stop()
    broker.restart()
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert client.message().body == b"kept"
