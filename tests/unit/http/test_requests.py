"""The request that each method sends.  No test opens a socket."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from gnsq_lite import errors
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.reply import Reply

URL = "http://server"


class Recorded:
    """One request: ``method``, ``path``, ``params``, ``body``."""

    def __init__(self, method: str, target: str, body: bytes | None) -> None:
        self.method, self.body = method, body or b""
        self.path = urlsplit(target).path
        self.params = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))


class Recorder:
    """Replaces the network: records each request, and returns *reply*."""

    def __init__(self, reply: Any = b"") -> None:
        self.reply = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.requests: list[Recorded] = []

    def once(self, method: str, target: str, url: str, body: bytes | None) -> Reply:
        self.requests.append(Recorded(method, target, body))
        return Reply(url, 200, "", self.reply)

    def on(self, client: HTTPClient) -> Any:
        client._once = self.once  # type: ignore[method-assign]
        return client


P = {"topic": "t", "partition": "1"}
PC = {**P, "channel": "c"}

NSQD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, dict[str, str]]] = [
    ("publish", ("t", b"x"), {"partition": 1}, "POST", "/pub", P),
    ("publish", ("t", b"x"), {"defer": 0.0001}, "POST", "/pub", {"topic": "t", "defer": "1"}),
    ("publish", ("t", b"x"), {"defer": 1.5}, "POST", "/pub", {"topic": "t", "defer": "1500"}),
    ("multipublish", ("t", [b"x"]), {"partition": 1}, "POST", "/mpub", {**P, "binary": "true"}),
    ("create_topic", ("t#ephemeral",), {}, "POST", "/topic/create", {"topic": "t#ephemeral"}),
    ("delete_topic", ("t",), {}, "POST", "/topic/delete", {"topic": "t"}),
    ("create_channel", ("t", "c"), {"partition": 1}, "POST", "/channel/create", PC),
    ("delete_channel", ("t", "c"), {"partition": 1}, "POST", "/channel/delete", PC),
    ("pause_channel", ("t", "c"), {"partition": 1}, "POST", "/channel/pause", PC),
    ("unpause_channel", ("t", "c"), {"partition": 1}, "POST", "/channel/unpause", PC),
    ("empty_channel", ("t", "c"), {"partition": 1}, "POST", "/channel/empty", PC),
    (
        "set_channel_order",
        ("t", "c"),
        {"ordered": False, "partition": 1},
        "POST",
        "/channel/setorder",
        {**PC, "order": "false"},
    ),
]

LOOKUPD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, dict[str, str]]] = [
    ("create_topic", ("t",), {}, "POST", "/topic/create", {"topic": "t"}),
    (
        "create_topic",
        ("t",),
        {
            "partition_num": 2,
            "replicator": 1,
            "extend": True,
            "ordered_multi": True,
            "multi_part": False,
            "disable_channel_auto_create": True,
        },
        "POST",
        "/topic/create",
        {
            "topic": "t",
            "partition_num": "2",
            "replicator": "1",
            "extend": "true",
            "orderedmulti": "true",
            "multipart": "false",
            "disable_channel_auto_create": "true",
        },
    ),
    (
        "delete_topic",
        ("t",),
        {"force": True},
        "POST",
        "/topic/delete",
        {"topic": "t", "partition": "**", "force": "true"},
    ),
    ("tombstone_topic", ("t", ("::1", 9)), {}, "POST", "/topic/tombstone", {"topic": "t", "node": "::1:9"}),
    ("tombstone_topic", ("t", "[::1]:9"), {}, "POST", "/topic/tombstone", {"topic": "t", "node": "::1:9"}),
    ("tombstone_topic", ("t", ("[::1]", 9)), {}, "POST", "/topic/tombstone", {"topic": "t", "node": "[::1]:9"}),
    (
        "tombstone_topic",
        ("t", "host"),
        {"restore": True},
        "POST",
        "/topic/tombstone",
        {"topic": "t", "node": "host:4151", "restore": "true"},
    ),
]


@pytest.mark.parametrize(
    ("client", "name", "args", "options", "method", "path", "params"),
    [*((NsqdClient, *call) for call in NSQD_CALLS), *((LookupdClient, *call) for call in LOOKUPD_CALLS)],
)
def test_each_method_of_a_client_sends_its_request(
    client: Any, name: str, args: Any, options: Any, method: str, path: str, params: dict[str, str]
) -> None:
    recorder = Recorder(b"{}")
    getattr(recorder.on(client(URL)), name)(*args, **options)
    (request,) = recorder.requests
    assert (request.method, request.path, request.params) == (method, path, params)


@pytest.mark.parametrize("node", ["", "a b", "h:0", "[::1", 5])
def test_an_invalid_node_is_refused_before_anything_is_sent(node: Any) -> None:
    recorder = Recorder()
    with pytest.raises(errors.OptionError, match="node="):
        recorder.on(LookupdClient(URL)).tombstone_topic("t", node)
    assert recorder.requests == []


def test_lookup_sends_access_metainfo_and_partition_only_if_given() -> None:
    recorder = Recorder({"producers": []})
    client = recorder.on(LookupdClient(URL))
    client.lookup("t")
    client.lookup("t", access="w", metainfo=True, partition=0)
    assert [request.params for request in recorder.requests] == [
        {"topic": "t"},
        {"topic": "t", "access": "w", "metainfo": "true", "partition": "0"},
    ]


@pytest.mark.rule("WIRE-6")
@pytest.mark.parametrize("name", ["", "a b", "t\n", "x" * 65, "ü", "../x", "t&partition=1"])
def test_a_bad_name_is_refused_before_anything_is_sent(name: str) -> None:
    recorder = Recorder()
    nsqd, lookupd = recorder.on(NsqdClient(URL)), recorder.on(LookupdClient(URL))
    for call in (
        lambda: nsqd.publish(name, b"x"),
        lambda: nsqd.multipublish(name, [b"x"]),
        lambda: nsqd.create_topic(name),
        lambda: nsqd.create_channel(name, "c"),
        lambda: nsqd.create_channel("t", name),
        lambda: nsqd.stats(name),
        lambda: nsqd.stats("t", name),
        lambda: lookupd.lookup(name),
        lambda: lookupd.channels(name),
        lambda: lookupd.create_topic(name),
        lambda: lookupd.delete_topic(name),
        lambda: lookupd.create_channel("t", name),
        lambda: lookupd.tombstone_topic(name, "h:1"),
    ):
        with pytest.raises(errors.InvalidName):
            call()
    assert recorder.requests == []


@pytest.mark.rule("WIRE-8")
def test_a_bad_body_is_refused_before_anything_is_sent() -> None:
    recorder = Recorder()
    client = recorder.on(NsqdClient(URL))
    for publish in (client.publish, lambda t, b: client.multipublish(t, [b])):
        with pytest.raises(errors.InvalidBody):
            publish("t", b"")
        with pytest.raises(errors.BodyTypeError, match=r"not str; call \.encode\(\) on it"):
            publish("t", "text")
    for bodies in ([], b"bytes", "text"):
        with pytest.raises((errors.InvalidBody, errors.BodyTypeError)):
            client.multipublish("t", bodies)
    for defer in (-0.001, float("nan"), float("inf")):
        with pytest.raises(errors.OptionError, match="defer"):
            client.publish("t", b"x", defer=defer)
    assert recorder.requests == []


def test_a_batch_is_packed_like_the_body_of_mpub() -> None:
    recorder = Recorder(b"OK")
    recorder.on(NsqdClient(URL)).multipublish("t", iter([b"ab", b"\n"]))
    assert recorder.requests[0].body == bytes.fromhex("00000002 00000002 6162 00000001 0a")
