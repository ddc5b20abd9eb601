"""FIN, REQ, TOUCH, message time-outs and attempts."""

from __future__ import annotations

import time

import pytest

from tests.conftest import Connect, MakeBroker
from tests.programs import wait_for
from tests.rawclient import OK, RawClient, RawMessage, mpub, pub
from tests.servers import ServerHandle

NOBODY = "0123456789abcdef"


def _consumer(connect: Connect, broker: ServerHandle, topic: str, ready: int = 1) -> RawClient:
    client = connect(broker)
    client.subscribe(topic, "c", ready=ready)
    return client


def are_refused(client: RawClient, message: RawMessage, why: str) -> None:
    """Answer *message* with each command, and check nsqd's error."""
    for command, answer in (("FIN", client.finish), ("REQ", client.requeue), ("TOUCH", client.touch)):
        answer(message)
        assert client.error() == f"E_{command}_FAILED {command} {message.id.decode()} failed {why}"


@pytest.mark.rule("MSG-1")
def test_a_finished_message_is_gone(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = _consumer(connect, broker, topic)
    broker.publish(topic, b"x")
    client.finish(client.message())
    client.sync()
    found = broker.stats(topic, "c")
    assert (found["in_flight_count"], found["depth"], found["message_count"]) == (0, 0, 1)
    me = found["clients"][0]
    assert (me["finish_count"], me["in_flight_count"], me["message_count"]) == (1, 0, 1)


@pytest.mark.rule("MSG-1")
def test_a_requeued_message_comes_back_with_one_more_attempt(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = _consumer(connect, broker, topic)
    broker.publish(topic, b"x")
    first = client.message()
    client.requeue(first)
    second = client.message()
    assert (second.id, second.timestamp_ns, second.body) == (first.id, first.timestamp_ns, first.body)
    assert (first.attempts, second.attempts) == (1, 2)
    found = broker.stats(topic, "c")
    assert (found["requeue_count"], found["clients"][0]["requeue_count"]) == (1, 1)


@pytest.mark.rule("MSG-1")
def test_a_requeue_with_a_delay_holds_the_message_back(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.prepare(topic, "c")
    client = _consumer(connect, broker, topic)
    broker.publish(topic, b"x")
    start = time.monotonic()
    client.requeue(client.message(), 400)
    client.sync()
    found = broker.stats(topic, "c")
    assert (found["deferred_count"], found["in_flight_count"], found["depth"]) == (1, 0, 0)
    assert client.message().attempts == 2
    assert time.monotonic() - start >= 0.39


def test_a_delay_beyond_the_limit_is_cut(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(max_req_timeout=0.2)
    server.prepare(topic, "c")
    client = _consumer(connect, server, topic)
    server.publish(topic, b"x")
    client.requeue(client.message(), 3_600_000)
    assert client.message().attempts == 2


@pytest.mark.rule("MSG-5")
def test_an_unanswered_message_comes_back_after_its_time(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(msg_timeout=0.4)
    server.prepare(topic, "c")
    client = _consumer(connect, server, topic)
    start = time.monotonic()
    server.publish(topic, b"x")
    first = client.message()
    second = client.message()
    assert time.monotonic() - start >= 0.39
    assert (second.id, second.attempts) == (first.id, 2)
    assert server.stats(topic, "c")["timeout_count"] == 1


@pytest.mark.rule("MSG-5")
@pytest.mark.rule("ERR-1")
def test_an_answer_after_the_time_is_over_fails_and_harms_nothing(
    make_broker: MakeBroker, connect: Connect, topic: str
) -> None:
    server = make_broker(msg_timeout=0.2)
    server.prepare(topic, "c")
    client = _consumer(connect, server, topic)
    server.publish(topic, b"x")
    late = client.message()
    client.send(b"RDY 0\n")
    wait_for(lambda: server.stats(topic, "c")["timeout_count"])
    are_refused(client, late, "ID not in flight")
    client.send(b"RDY 1\n")
    assert client.message().attempts == 2


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"FIN {NOBODY}\n", f"E_FIN_FAILED FIN {NOBODY} failed ID not in flight"),
        (f"REQ {NOBODY} 0\n", f"E_REQ_FAILED REQ {NOBODY} failed ID not in flight"),
        (f"TOUCH {NOBODY}\n", f"E_TOUCH_FAILED TOUCH {NOBODY} failed ID not in flight"),
    ],
)
@pytest.mark.rule("ERR-1")
def test_an_answer_for_an_unknown_message_leaves_the_connection_open(
    broker: ServerHandle, connect: Connect, topic: str, line: str, text: str
) -> None:
    client = _consumer(connect, broker, topic)
    client.send(line.encode())
    assert client.error() == text
    client.sync()


@pytest.mark.rule("ERR-1")
def test_a_message_belongs_to_the_client_it_was_sent_to(broker: ServerHandle, connect: Connect, topic: str) -> None:
    owner, other = _consumer(connect, broker, topic), connect(broker)
    other.subscribe(topic, "c")
    broker.publish(topic, b"x")
    message = owner.message()
    are_refused(other, message, "client does not own message")
    owner.finish(message)
    owner.sync()
    assert broker.stats(topic, "c")["in_flight_count"] == 0


@pytest.mark.rule("MSG-6")
def test_a_touched_message_comes_back_a_whole_time_after_the_touch(
    make_broker: MakeBroker, connect: Connect, topic: str
) -> None:
    server = make_broker(msg_timeout=1.5)
    server.prepare(topic, "c")
    client = _consumer(connect, server, topic)
    server.publish(topic, b"x")
    message = client.message()
    assert client.is_silent(0.2)
    start = time.monotonic()
    client.touch(message)
    assert client.message().attempts == 2
    assert time.monotonic() - start >= 1.49


@pytest.mark.rule("MSG-6")
def test_touch_extends_to_max_msg_timeout_and_no_further(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(msg_timeout=1.0, max_msg_timeout=1.5)
    server.prepare(topic, "c")
    client = _consumer(connect, server, topic)
    start = time.monotonic()
    server.publish(topic, b"x")
    message = client.message()
    again = None
    while again is None and time.monotonic() - start < 12:
        client.touch(message)
        try:
            again = client.message(0.4)
        except TimeoutError:
            continue
    assert again is not None
    assert again.attempts == 2
    assert 1.49 <= time.monotonic() - start < 10


def test_attempts_count_up(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = _consumer(connect, broker, topic)
    broker.publish(topic, b"x")
    seen = []
    for _ in range(300):  # more than a byte holds
        message = client.message()
        seen.append(message.attempts)
        client.requeue(message)
    assert seen == list(range(1, 301))


@pytest.mark.rule("RDY-4")
def test_a_requeue_or_a_finish_frees_a_place(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = _consumer(connect, broker, topic, ready=1)
    client.ask(mpub(f"{topic}_other", b"x"))
    for body in (b"a", b"b", b"c"):
        broker.publish(topic, body)
    first = client.message()
    client.requeue(first, 60_000)
    second = client.message()
    client.finish(second)
    third = client.message()
    assert {first.body, second.body, third.body} == {b"a", b"b", b"c"}
    assert client.is_silent(0.1)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.rule("MSG-5")
def test_what_a_lost_client_had_in_flight_comes_back_when_its_time_is_over_and_not_before(
    make_broker: MakeBroker, connect: Connect, topic: str, how: str
) -> None:
    # nsqd/channel.go, RemoveClient @v1.3.0: the client goes, its messages stay in flight.
    server = make_broker(msg_timeout=2.0)
    server.prepare(topic, "c")
    lost = _consumer(connect, server, topic)
    start = time.monotonic()
    server.publish(topic, b"x")
    assert lost.message().attempts == 1
    heir = _consumer(connect, server, topic)
    getattr(lost, how)()
    assert heir.is_silent(0.3)
    found = server.stats(topic, "c")
    assert (found["client_count"], found["in_flight_count"], found["depth"]) == (1, 1, 0)
    message = heir.message()
    assert time.monotonic() - start >= 1.99
    assert (message.body, message.attempts) == (b"x", 2)
    assert server.stats(topic, "c")["timeout_count"] == 1


def test_answers_may_be_sent_together_with_other_commands(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = _consumer(connect, broker, topic, ready=50)
    client.send(mpub(topic, *[b"x"] * 50))
    frames = [client.frame() for _ in range(51)]
    assert OK in frames
    ids = [body[10:26] for kind, body in frames if kind == 2]
    client.send(b"".join(b"FIN " + each + b"\n" for each in ids) + pub(topic, b"last"))
    frames = [client.frame(), client.frame()]
    assert OK in frames
    assert any(body.endswith(b"last") for _, body in frames)
