"""Topics and channels: copies, backlog, balance, ephemeral channels, pauses, messages of a lost connection."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, MakeBroker
from tests.programs import wait_for
from tests.rawclient import CLOSE_WAIT, mpub, pub
from tests.servers import ServerHandle


def test_each_channel_gets_a_copy(broker: ServerHandle, connect: Connect, topic: str) -> None:
    one, two = connect(broker), connect(broker)
    one.subscribe(topic, "one", ready=1)
    two.subscribe(topic, "two", ready=1)
    broker.publish(topic, b"x")
    first, second = one.message(), two.message()
    assert (first.body, second.body) == (b"x", b"x")
    one.finish(first)
    two.requeue(second)
    assert two.message().attempts == 2
    assert one.is_silent(0.1)


def test_a_message_goes_to_one_client_of_a_channel(broker: ServerHandle, connect: Connect, topic: str) -> None:
    clients = [connect(broker) for _ in range(2)]
    for client in clients:
        client.subscribe(topic, "c", ready=10)
        client.sync()
    connect(broker).ask(mpub(topic, *[b"%d" % n for n in range(20)]))
    seen = [int(client.message().body) for client in clients for _ in range(10)]
    assert sorted(seen) == list(range(20))


def test_what_came_before_the_first_channel_goes_to_it(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.publish(topic, b"early")
    assert broker.stats(topic)["depth"] == 1
    first = connect(broker)
    first.subscribe(topic, "first", ready=1)
    assert first.message().body == b"early"
    second = connect(broker)
    second.subscribe(topic, "second", ready=1)
    assert second.is_silent(0.2)
    assert broker.stats(topic)["depth"] == 0


def test_a_channel_keeps_messages_while_nobody_is_connected(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c")
    client.close()
    broker.publish(topic, b"x")
    wait_for(lambda: broker.stats(topic, "c")["depth"] == 1)
    wait_for(lambda: broker.stats(topic, "c")["client_count"] == 0)


def test_an_ephemeral_channel_goes_with_its_last_client(broker: ServerHandle, connect: Connect, topic: str) -> None:
    one, two = connect(broker), connect(broker)
    one.subscribe(topic, "c#ephemeral")
    two.subscribe(topic, "c#ephemeral")
    one.close()
    wait_for(lambda: broker.stats(topic, "c#ephemeral")["client_count"] == 1)
    two.close()
    wait_for(lambda: broker.stats(topic)["channels"] == [])


def test_an_ephemeral_topic_goes_with_its_last_channel(broker: ServerHandle, connect: Connect, topic: str) -> None:
    name = f"{topic}#ephemeral"
    client = connect(broker)
    client.subscribe(name, "c#ephemeral", ready=1)
    broker.publish(name, b"x")
    assert client.message().body == b"x"
    client.close()
    wait_for(lambda: broker.stats(name) == {})


def test_an_ephemeral_topic_without_a_channel_stays(broker: ServerHandle, connect: Connect, topic: str) -> None:
    name = f"{topic}#ephemeral"
    connect(broker).ask(pub(name, b"x"))
    assert broker.stats(name)["depth"] == 1


def test_an_ephemeral_channel_drops_what_its_memory_does_not_hold(
    make_broker: MakeBroker, connect: Connect, topic: str
) -> None:
    server = make_broker(mem_queue_size=10)
    client = connect(server)
    client.subscribe(topic, "c#ephemeral")
    connect(server).ask(mpub(topic, *[b"x"] * 50))
    wait_for(lambda: server.stats(topic)["depth"] == 0 and server.stats(topic, "c#ephemeral")["message_count"] == 50)
    assert server.stats(topic, "c#ephemeral")["depth"] == 10


def test_a_queue_holds_more_than_its_memory(make_broker: MakeBroker, connect: Connect, topic: str) -> None:
    server = make_broker(mem_queue_size=10)
    client = connect(server)
    client.ask(mpub(topic, *[b"%d" % n for n in range(50)]))
    assert server.stats(topic)["depth"] == 50
    assert server.stats(topic)["backend_depth"] == 40
    client.subscribe(topic, "c", ready=50)
    assert sorted(int(client.message().body) for _ in range(50)) == list(range(50))


def test_a_paused_channel_holds_its_messages_and_the_others_flow(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    paused, other = connect(broker), connect(broker)
    paused.subscribe(topic, "paused", ready=1)
    other.subscribe(topic, "other", ready=1)
    assert broker.http("POST", f"/channel/pause?topic={topic}&channel=paused").status == 200
    broker.publish(topic, b"x")
    assert other.message().body == b"x"
    assert paused.is_silent(0.2)
    assert broker.stats(topic, "paused")["paused"] is True
    assert broker.http("POST", f"/channel/unpause?topic={topic}&channel=paused").status == 200
    assert paused.message().body == b"x"


def test_a_paused_topic_holds_its_messages(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert broker.http("POST", f"/topic/pause?topic={topic}").status == 200
    broker.publish(topic, b"x")
    assert client.is_silent(0.2)
    found = broker.stats(topic)
    assert (found["paused"], found["depth"]) == (True, 1)
    assert broker.http("POST", f"/topic/unpause?topic={topic}").status == 200
    assert client.message().body == b"x"
    assert broker.stats(topic)["paused"] is False


def test_a_paused_topic_gives_its_backlog_to_no_new_channel(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.publish(topic, b"x")
    assert broker.http("POST", f"/topic/pause?topic={topic}").status == 200
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert client.is_silent(0.2)
    assert broker.stats(topic)["depth"] == 1
    assert broker.http("POST", f"/topic/unpause?topic={topic}").status == 200
    assert client.message().body == b"x"


def test_deleting_a_channel_cuts_its_clients(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert broker.http("POST", f"/channel/delete?topic={topic}&channel=c").status == 200
    assert client.is_closed()
    assert broker.stats(topic)["channels"] == []


def test_deleting_a_topic_cuts_its_clients(broker: ServerHandle, connect: Connect, topic: str) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert broker.http("POST", f"/topic/delete?topic={topic}").status == 200
    assert client.is_closed()
    assert broker.stats(topic) == {}


def test_emptying_a_channel_drops_in_flight_and_deferred_ones_too(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=2)
    connect(broker).ask(mpub(topic, *[b"x"] * 5))
    messages = [client.message(), client.message()]
    client.send(b"RDY 0\n")
    client.requeue(messages[0], 60_000)
    client.sync()
    assert broker.http("POST", f"/channel/empty?topic={topic}&channel=c").status == 200
    found = broker.stats(topic, "c")
    assert (found["depth"], found["in_flight_count"], found["deferred_count"]) == (0, 0, 0)
    client.finish(messages[1])
    assert client.error().startswith("E_FIN_FAILED ")


@pytest.mark.rule("CLOSE-1")
def test_after_cls_an_unanswered_message_stays_in_flight_when_the_client_leaves(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    broker.publish(topic, b"x")
    client.message()
    client.send(b"CLS\n")
    assert client.frame() == CLOSE_WAIT
    assert broker.stats(topic, "c")["clients"][0]["state"] == 4
    client.close()
    wait_for(lambda: broker.stats(topic, "c")["client_count"] == 0)
    found = broker.stats(topic, "c")
    assert (found["depth"], found["in_flight_count"]) == (0, 1)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_ends_cuts_its_clients(broker: ServerHandle, connect: Connect, topic: str, how: str) -> None:
    consumer, producer = connect(broker), connect(broker)
    consumer.subscribe(topic, "c", ready=1)
    producer.sync()
    getattr(broker, how)()
    assert consumer.is_closed()
    assert producer.is_closed()


def test_what_was_in_flight_when_the_server_stopped_comes_again(
    broker: ServerHandle, connect: Connect, topic: str
) -> None:
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    broker.publish(topic, b"x")
    client.message()
    broker.stop()
    broker.restart()
    client = connect(broker)
    client.subscribe(topic, "c", ready=1)
    assert client.message().body == b"x"


def test_a_pause_survives_a_restart(broker: ServerHandle, connect: Connect, topic: str) -> None:
    broker.http("POST", f"/topic/create?topic={topic}")
    broker.http("POST", f"/channel/create?topic={topic}&channel=c")
    broker.http("POST", f"/channel/pause?topic={topic}&channel=c")
    broker.http("POST", f"/topic/create?topic={topic}_b")
    broker.http("POST", f"/topic/pause?topic={topic}_b")
    broker.stop()
    broker.restart()
    assert (broker.stats(topic)["paused"], broker.stats(topic, "c")["paused"]) == (False, True)
    assert broker.stats(f"{topic}_b")["paused"] is True
