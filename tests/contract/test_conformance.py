"""Each row of the conformance table of docs/testing.rst, on nsqd and on the broker, with like_nsqd and without."""

from __future__ import annotations

import http.client
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Connect, MakeBroker, MakeCluster
from tests.contract.conformance import BEHAVIOURS, PAGE, Behaviour, behaviour, page_with, table
from tests.programs import wait_for
from tests.rawclient import CLOSE_WAIT, MESSAGE, PATIENCE, Closed, RawClient, dpub, identify, mpub, pub, sub
from tests.servers import ServerHandle

#: Longer than a message that is due needs; shorter than the five seconds in which nsqd learns of a channel.
SOON = 2.5


@dataclass
class Bench:
    """What an observation needs: servers, connections, a topic."""

    make_broker: MakeBroker
    make_cluster: MakeCluster
    connect: Connect
    topic: str
    certs: Any

    def prepared(self, *channels: str, **options: Any) -> ServerHandle:
        """Start an nsqd that knows the channels, with a topic that is not paused."""
        server = self.make_broker(**options)
        server.prepare(self.topic, *(channels or ("c",)))
        return server

    def consumer(self, server: ServerHandle, channel: str = "c", ready: int = 9, **options: Any) -> RawClient:
        """Return a subscribed connection, to which messages are sent at once."""
        client = self.connect(server)
        client.identify(**{"output_buffer_size": -1, **options})
        client.subscribe(self.topic, channel, ready=ready)
        client.sync()
        return client

    def post(self, server: ServerHandle, path: str, channel: str = "") -> None:
        """Call the HTTP API for the topic, or for the channel."""
        where = f"?topic={self.topic}" + (f"&channel={channel}" if channel else "")
        assert server.http("POST", path + where).status == 200


def bodies(client: RawClient, seconds: float = 0.4, expected: int = 0) -> list[bytes]:
    """Return the bodies of the messages that come within *seconds* of each other; wait longer for *expected* ones."""
    found = list[bytes]()
    while True:
        try:
            found.append(client.message(seconds if len(found) >= expected else PATIENCE).body)
        except TimeoutError:
            return found


def reply(client: RawClient, seconds: float = PATIENCE) -> str:
    """Return the next frame in words."""
    try:
        kind, body = client.frame(seconds)
    except TimeoutError:
        return "nothing"
    except (Closed, ConnectionError):
        return "closed"
    return "message" if kind == MESSAGE else body.decode().split(" ")[0]


# -- where the broker is kinder


@behaviour("first delay of a new channel", "up to 5 s late", broker="on time")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.consumer(server)
    client.ask(dpub(bench.topic, 100, b"x"))
    return "on time" if bodies(client, SOON) else "up to 5 s late"


@behaviour("delay of a message beyond ``mem_queue_size`` of its topic", "lost: due at once", broker="kept")
def _(bench: Bench) -> str:
    server = bench.make_broker(mem_queue_size=2)
    client = bench.connect(server)
    for number in range(3):
        client.ask(dpub(bench.topic, 600_000, b"%d" % number))
    client.subscribe(bench.topic, "c", ready=9)
    return {0: "kept", 1: "lost: due at once"}[len(bodies(client, SOON))]


@behaviour("ids of messages published to two nsqds of a host at once", "some are equal", broker="all differ")
def _(bench: Bench) -> str:
    nodes = bench.make_cluster(nodes=2).nodes
    producers = [bench.connect(node) for node in nodes]
    consumers = [bench.consumer(node) for node in nodes]
    for _ in range(100):
        for producer in producers:
            producer.send(pub(bench.topic, b"x"))
        ids = []
        for producer, consumer in zip(producers, consumers, strict=True):
            assert producer.frame()[1] == b"OK"
            ids.append((message := consumer.message()).id)
            consumer.finish(message)
        if len(set(ids)) == 1:
            return "some are equal"
    return "all differ"


@behaviour("second IDENTIFY", "changes the answer only", broker="changes the connection")
def _(bench: Bench) -> str:
    server = bench.prepared()
    client = bench.connect(server)
    assert client.identify(msg_timeout=60_000)["msg_timeout"] == 60_000
    assert client.identify(msg_timeout=1000)["msg_timeout"] == 1000
    client.subscribe(bench.topic, "c", ready=9)
    server.publish(bench.topic, b"x")
    assert client.message().attempts == 1
    return "changes the connection" if reply(client, SOON) == "message" else "changes the answer only"


@behaviour("message in memory after ``kill -9`` and a restart", "lost", broker="kept", like_nsqd="kept")
def _(bench: Bench) -> str:
    server = bench.prepared()
    server.publish(bench.topic, b"x")
    server.kill()
    server.restart()
    return "kept" if server.stats(bench.topic, "c")["depth"] else "lost"


@behaviour("GET of ``/config/mem_queue_size``, ``/debug/pprof/``", "200, 200", broker="404, 404", like_nsqd="404, 404")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    return ", ".join(str(server.http("GET", path).status) for path in ("/config/mem_queue_size", "/debug/pprof/"))


@behaviour("``/stats`` without ``format=json``", "text", broker="JSON", like_nsqd="JSON")
def _(bench: Bench) -> str:
    return "JSON" if bench.make_broker().http("GET", "/stats").body.startswith(b"{") else "text"


@behaviour("name of a cipher of TLS 1.2 in ``/stats``", "Go's", broker="OpenSSL's", like_nsqd="OpenSSL's")
def _(bench: Bench) -> str:
    server = bench.make_broker(tls_cert=bench.certs.server.cert, tls_key=bench.certs.server.key)
    client = bench.connect(server)
    client.identify(tls_v1=True)
    context = ssl.create_default_context(cafile=bench.certs.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client.upgrade_tls(context, "127.0.0.1")
    client.frame()
    client.subscribe(bench.topic, "c")
    name = server.stats(bench.topic, "c")["clients"][0]["tls_cipher_suite"]
    return "Go's" if "_WITH_" in name else "OpenSSL's"


# -- messages


@behaviour("ids of messages of two topics of an nsqd", "some are equal")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.connect(server)
    consumers = [bench.connect(server) for _ in range(2)]
    for number, consumer in enumerate(consumers):
        consumer.subscribe(f"{bench.topic}_{number}", "c", ready=1)
    for _ in range(200):
        client.send(pub(f"{bench.topic}_0", b"x"), pub(f"{bench.topic}_1", b"x"))
        messages = [consumer.message() for consumer in consumers]
        if messages[0].id == messages[1].id:
            return "some are equal"
        for consumer, message in zip(consumers, messages, strict=True):
            consumer.finish(message)
    return "all differ"


@behaviour("delay after SIGTERM and a restart", "lost: due at once")
def _(bench: Bench) -> str:
    server = bench.prepared()
    bench.connect(server).ask(dpub(bench.topic, 600_000, b"x"))
    server.stop()
    server.restart()
    client = bench.connect(server)
    client.subscribe(bench.topic, "c", ready=1)
    return "lost: due at once" if bodies(client, SOON) else "kept"


@behaviour("message in flight of a lost connection", "again after ``msg_timeout``")
def _(bench: Bench) -> str:
    server = bench.prepared(msg_timeout=1.5)
    lost, other = bench.consumer(server, ready=1), bench.consumer(server, ready=0)
    server.publish(bench.topic, b"x")
    assert lost.message().attempts == 1
    lost.reset()
    other.send(b"RDY 1\n")
    assert bodies(other, 0.5) == []
    return "again after ``msg_timeout``" if other.message().attempts == 2 else "with its old attempts"


@behaviour("FIN, REQ, TOUCH of a message of another connection", "E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    owner, other = bench.consumer(server, ready=1), bench.consumer(server, ready=0)
    server.publish(bench.topic, b"x")
    message = owner.message()
    seen = []
    for answer in (other.finish, other.requeue, other.touch):
        answer(message)
        seen.append(reply(other))
    return ", ".join(seen)


@behaviour("message that ``sample_rate`` withholds from a consumer", "thrown away")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.consumer(server, ready=500, sample_rate=5)
    server.publish(bench.topic, *[b"x"] * 200)
    count = len(bodies(client, SOON))
    found = server.stats(bench.topic, "c")
    assert count < 200
    return "thrown away" if (found["depth"], found["in_flight_count"]) == (0, count) else "kept"


@behaviour("message for a full ephemeral channel", "dropped")
def _(bench: Bench) -> str:
    server = bench.make_broker(mem_queue_size=3)
    bench.consumer(server, "c#ephemeral", ready=0)
    server.publish(bench.topic, *[b"x"] * 5)
    wait_for(lambda: server.stats(bench.topic, "c#ephemeral")["message_count"] == 5)
    return "dropped" if server.stats(bench.topic, "c#ephemeral")["depth"] == 3 else "kept"


@behaviour("DPUB with 0 ms, with ``00100`` ms", "at once, after 0.1 s")
def _(bench: Bench) -> str:
    server = bench.prepared()
    client = bench.consumer(server)
    client.send(dpub(bench.topic, 0, b"x"))
    assert {client.frame()[0], client.frame()[0]} == {0, MESSAGE}
    start = time.monotonic()
    client.send(f"DPUB {bench.topic} 00100\n".encode(), b"\0\0\0\1y")
    assert {client.frame()[0], client.frame()[0]} == {0, MESSAGE}
    return f"at once, {'after 0.1 s' if time.monotonic() - start >= 0.09 else 'at once'}"


# -- commands


@behaviour("after CLS: RDY; RDY above the limit; SUB", "ignored; ignored; E_INVALID")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.consumer(server, ready=0)
    client.send(b"CLS\n")
    assert client.frame() == CLOSE_WAIT
    server.publish(bench.topic, b"x")
    seen = []
    for command in (b"RDY 9\n", b"RDY 99999\n", sub(bench.topic, "d")):
        client.send(command)
        seen.append(reply(client, 0.4 if command.startswith(b"RDY") else PATIENCE).replace("nothing", "ignored"))
    return "; ".join(seen)


@behaviour("RDY below the messages in flight", "nothing until there are fewer")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.consumer(server, ready=3)
    server.publish(bench.topic, *[b"x"] * 6)
    messages = [client.message() for _ in range(3)]
    client.send(b"RDY 1\n")
    for message in messages[:2]:
        client.finish(message)
        assert bodies(client, 0.2) == []
    client.finish(messages[2])
    return "nothing until there are fewer" if len(bodies(client, expected=1)) == 1 else "more"


@behaviour("``output_buffer_timeout=-1``", "held until RDY is used up")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.consumer(server, ready=2, output_buffer_size=16384, output_buffer_timeout=-1)
    server.publish(bench.topic, b"1")
    assert bodies(client, 1.0) == []
    server.publish(bench.topic, b"2")
    return "held until RDY is used up" if len(bodies(client, expected=2)) == 2 else "held longer"


@behaviour("PUB with words after the topic; with two spaces", "taken; E_BAD_TOPIC")
def _(bench: Bench) -> str:
    client = bench.connect(bench.make_broker())
    client.send(f"PUB {bench.topic} extra words\n".encode(), b"\0\0\0\1x")
    seen = reply(client).replace("OK", "taken")
    client.send(f"PUB  {bench.topic}\n".encode(), b"\0\0\0\1x")
    return f"{seen}; {reply(client)}"


@behaviour("IDENTIFY with a value out of range, of another type", "E_BAD_BODY, closed")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    seen = set()
    for wrong in (
        *({"sample_rate": -1}, {"heartbeat_interval": 60_001}, {"heartbeat_interval": 999}, {"msg_timeout": 900_001}),
        *({"output_buffer_size": 63}, {"output_buffer_timeout": 24}, {"client_id": 5}, {"client_id": []}),
    ):
        client = bench.connect(server)
        client.send(identify(**wrong))
        seen.add(f"{reply(client)}, {reply(client)}")
    return " or ".join(seen)


# -- pauses, deletions


@behaviour("paused channel: REQ, time-out, delay", "wait until it is unpaused")
def _(bench: Bench) -> str:
    server = bench.prepared(msg_timeout=0.5)
    client = bench.consumer(server)
    server.publish(bench.topic, b"requeued", b"unanswered")
    messages = [client.message(), client.message()]
    bench.post(server, "/channel/pause", "c")
    client.requeue(next(message for message in messages if message.body == b"requeued"))
    client.ask(dpub(bench.topic, 100, b"delayed"))
    wait_for(lambda: server.stats(bench.topic, "c")["depth"] == 3)
    assert bodies(client) == []
    bench.post(server, "/channel/unpause", "c")
    return (
        "wait until it is unpaused"
        if {*bodies(client, expected=3)} == {b"requeued", b"unanswered", b"delayed"}
        else "lost"
    )


@behaviour("channel created while its topic is paused", "gets the backlog after the pause")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    bench.post(server, "/topic/create")
    bench.post(server, "/topic/pause")
    server.publish(bench.topic, b"x")
    client = bench.consumer(server)
    assert bodies(client) == []
    bench.post(server, "/topic/unpause")
    return "gets the backlog after the pause" if bodies(client, expected=1) else "gets nothing"


@behaviour("``/topic/empty``", "drops the backlog only")
def _(bench: Bench) -> str:
    server = bench.prepared()
    server.publish(bench.topic, b"x")
    wait_for(lambda: server.stats(bench.topic, "c")["depth"] == 1)
    bench.post(server, "/topic/empty")
    return "drops the backlog only" if server.stats(bench.topic, "c")["depth"] == 1 else "drops all"


@behaviour("``/channel/delete``: consumers; nsqlookupd", "disconnected; still lists it")
def _(bench: Bench) -> str:
    cluster = bench.make_cluster()
    (server,) = cluster.nodes
    client = bench.consumer(server)
    where = f"/channels?topic={bench.topic}"
    wait_for(lambda: cluster.lookupd_http("GET", where).json()["channels"] == ["c"])
    bench.post(server, "/channel/delete", "c")
    ended = "disconnected" if client.is_closed() else "connected"
    wait_for(lambda: server.stats(bench.topic)["channels"] == [])
    time.sleep(0.5)  # nsqd registers the topic at nsqlookupd meanwhile
    return f"{ended}; {'still lists it' if cluster.lookupd_http('GET', where).json()['channels'] else 'forgets it'}"


@behaviour("PUB on an open connection after ``/topic/delete``", "creates the topic again")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    client = bench.connect(server)
    client.ask(pub(bench.topic, b"x"))
    bench.post(server, "/topic/delete")
    client.ask(mpub(bench.topic, b"y", b"z"))
    return "creates the topic again" if server.stats(bench.topic)["message_count"] == 2 else "keeps the count"


@behaviour("ephemeral topic with a durable channel", "deleted with the channel")
def _(bench: Bench) -> str:
    bench.topic += "#ephemeral"
    server = bench.make_broker()
    client = bench.consumer(server)
    client.close()
    wait_for(lambda: server.stats(bench.topic, "c")["client_count"] == 0)
    escaped = bench.topic.replace("#", "%23")
    assert server.http("POST", f"/channel/delete?topic={escaped}&channel=c").status == 200
    wait_for(lambda: server.stats(bench.topic) == {})
    return "deleted with the channel"


# -- HTTP


@behaviour("``/pub`` with ``defer=``, ``-1``, ``1e3``, ``+5``", "400, 400, 400, 200")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    where = f"/pub?topic={bench.topic}&defer="
    return ", ".join(str(server.http("POST", where + text, b"x").status) for text in ("", "-1", "1e3", "%2B5"))


@behaviour("``/pub?topic=a&topic=b``", "publishes to a")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    assert server.http("POST", "/pub?topic=a&topic=b", b"x").status == 200
    return f"publishes to {' and '.join(topic['topic_name'] for topic in server.stats()['topics'])}"


@behaviour("``/pub`` with a body in chunks", "one message")
def _(bench: Bench) -> str:
    server = bench.make_broker()
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
    connection.request("POST", f"/pub?topic={bench.topic}", iter([b"abc", b"de"]), encode_chunked=True)
    assert connection.getresponse().read() == b"OK"
    connection.close()
    client = bench.connect(server)
    client.subscribe(bench.topic, "c", ready=1)
    return "one message" if client.message().body == b"abcde" else "another body"


@behaviour("GET ``/ping/``, with a slash at the end", "301", broker="404", like_nsqd="404")
def _(bench: Bench) -> str:
    return str(bench.make_broker().http("GET", "/ping/").status)


# -- the table


@pytest.mark.parametrize(
    "server_kind", ["embedded", "like_nsqd", pytest.param("nsqd", marks=pytest.mark.nsqd)], indirect=True
)
@pytest.mark.parametrize("row", BEHAVIOURS, ids=lambda row: re.sub(r"\W+", "_", row.text).strip("_"))
def test_a_row_of_the_table_is_what_the_server_does(
    row: Behaviour,
    server_kind: str,
    make_broker: MakeBroker,
    make_cluster: MakeCluster,
    connect: Connect,
    topic: str,
    certs: Any,
) -> None:
    assert row.observe(Bench(make_broker, make_cluster, connect, topic, certs)) == row.seen[server_kind]


def test_the_page_has_the_table_that_the_rows_make() -> None:
    made = page_with(table())
    assert PAGE.read_text(encoding="utf-8") == made, "run python -m tests.contract.conformance"
