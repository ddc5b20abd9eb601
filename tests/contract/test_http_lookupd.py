"""nsqlookupd's HTTP API, and how nsqds register."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, MakeCluster
from tests.programs import wait_for
from tests.servers import Cluster

V1 = "nsq; version=1.0"


def _producers(cluster: Cluster, topic: str) -> list[int]:
    answer = cluster.lookupd_http("GET", f"/lookup?topic={topic}")
    return sorted(part["tcp_port"] for part in answer.json()["producers"])


def test_ping_and_info(cluster: Cluster) -> None:
    ping = cluster.lookupd_http("GET", "/ping")
    assert (ping.status, ping.body) == (200, b"OK")
    info = cluster.lookupd_http("GET", "/info")
    assert info.json() == {"version": "1.3.0"}
    assert info.headers["x-nsq-content-type"] == V1


@pytest.mark.rule("DISC-5")
@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a!b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=a!b&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t&channel=a!b", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
    ],
)
def test_a_bad_request_is_a_status_and_a_message(
    cluster: Cluster, method: str, path: str, status: int, text: str
) -> None:
    answer = cluster.lookupd_http(method, path)
    assert (answer.status, answer.json()) == (status, {"message": text})
    assert answer.headers["x-nsq-content-type"] == V1


@pytest.mark.rule("DISC-2")
def test_an_nsqd_registers_its_topics_and_channels(cluster: Cluster, topic: str) -> None:
    (node,) = cluster.nodes
    node.publish(topic, b"x")
    node.http("POST", f"/channel/create?topic={topic}&channel=c")
    cluster.wait_registered(topic)
    wait_for(lambda: cluster.lookupd_http("GET", f"/channels?topic={topic}").json() == {"channels": ["c"]})
    found = cluster.lookupd_http("GET", f"/lookup?topic={topic}").json()
    assert found["channels"] == ["c"]
    (producer,) = found["producers"]
    assert producer.pop("remote_address").startswith("127.0.0.1:")
    assert isinstance(producer.pop("hostname"), str)
    assert producer == {
        "broadcast_address": "127.0.0.1",
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": "1.3.0",
    }
    assert cluster.lookupd_http("GET", "/topics").json() == {"topics": [topic]}
    assert cluster.lookupd_http("GET", "/channels?topic=none").json() == {"channels": []}
    (shown,) = cluster.lookupd_http("GET", "/nodes").json()["producers"]
    assert (shown["tcp_port"], shown["topics"], shown["tombstones"]) == (node.tcp_port, [topic], [False])


@pytest.mark.rule("DISC-2")
def test_every_nsqd_of_a_topic_is_listed(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster(nodes=2)
    cluster.nodes[0].publish(topic, b"x")
    cluster.wait_registered(topic, 1)
    cluster.nodes[1].publish(topic, b"x")
    cluster.wait_registered(topic, 2)
    assert _producers(cluster, topic) == sorted(node.tcp_port for node in cluster.nodes)


@pytest.mark.rule("CONN-4")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_nsqd_that_ends_is_listed_no_longer(make_cluster: MakeCluster, topic: str, how: str) -> None:
    cluster = make_cluster(nodes=2)
    for node in cluster.nodes:
        node.http("POST", f"/topic/create?topic={topic}")
    cluster.wait_registered(topic, 2)
    getattr(cluster.nodes[0], how)()
    cluster.wait_registered(topic, 1)
    assert _producers(cluster, topic) == [cluster.nodes[1].tcp_port]
    cluster.nodes[0].restart()
    if how == "kill":  # nsqd registers a topic before it writes down that it has it
        cluster.nodes[0].http("POST", f"/topic/create?topic={topic}")
    cluster.wait_registered(topic, 2)


def test_a_topic_and_a_channel_made_at_lookupd_are_known_without_producers(cluster: Cluster, topic: str) -> None:
    answer = cluster.lookupd_http("POST", f"/topic/create?topic={topic}")
    assert (answer.status, answer.body) == (200, b"")
    assert cluster.lookupd_http("GET", f"/lookup?topic={topic}").json() == {"channels": [], "producers": []}
    cluster.lookupd_http("POST", f"/channel/create?topic={topic}_b&channel=c")
    assert cluster.lookupd_http("GET", f"/lookup?topic={topic}_b").json() == {"channels": ["c"], "producers": []}
    assert cluster.lookupd_http("POST", f"/channel/delete?topic={topic}_b&channel=c").body == b""
    assert cluster.lookupd_http("GET", f"/lookup?topic={topic}_b").json() == {"channels": [], "producers": []}
    assert cluster.lookupd_http("POST", f"/topic/delete?topic={topic}").body == b""
    assert cluster.lookupd_http("GET", f"/lookup?topic={topic}").status == 404


def test_a_new_topic_gets_the_channels_that_lookupd_knows(cluster: Cluster, connect: Connect, topic: str) -> None:
    cluster.nodes[0].http("POST", f"/topic/create?topic={topic}_b")
    cluster.wait_registered(f"{topic}_b")  # now nsqd has the address of nsqlookupd
    cluster.lookupd_http("POST", f"/channel/create?topic={topic}&channel=known")
    cluster.nodes[0].publish(topic, b"x")
    wait_for(lambda: cluster.nodes[0].stats(topic, "known").get("depth") == 1)


def test_a_tombstoned_producer_is_hidden_for_a_while(make_cluster: MakeCluster, topic: str) -> None:
    cluster = make_cluster(tombstone_lifetime=1.0)
    (node,) = cluster.nodes
    node.http("POST", f"/topic/create?topic={topic}")
    cluster.wait_registered(topic, 1)
    name = f"127.0.0.1:{node.http_port}"
    assert cluster.lookupd_http("POST", f"/topic/tombstone?topic={topic}&node={name}").body == b""
    assert _producers(cluster, topic) == []
    (shown,) = cluster.lookupd_http("GET", "/nodes").json()["producers"]
    assert (shown["topics"], shown["tombstones"]) == ([topic], [True])
    cluster.wait_registered(topic, 1)


def test_deleting_a_topic_at_nsqd_takes_it_from_lookupd(cluster: Cluster, topic: str) -> None:
    (node,) = cluster.nodes
    node.http("POST", f"/topic/create?topic={topic}")
    cluster.wait_registered(topic, 1)
    node.http("POST", f"/topic/delete?topic={topic}")
    wait_for(lambda: not cluster.lookupd_http("GET", f"/lookup?topic={topic}").json().get("producers"))


def test_debug_lists_registrations(cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].http("POST", f"/topic/create?topic={topic}")
    cluster.wait_registered(topic, 1)
    found = cluster.lookupd_http("GET", "/debug").json()
    (entry,) = found[f"topic:{topic}:"]
    assert (entry["tcp_port"], entry["tombstoned"]) == (cluster.nodes[0].tcp_port, False)
