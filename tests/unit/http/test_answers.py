"""Decoding of answers: both forms, and any invalid bytes that a server may send.  No test opens a socket."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite import errors
from gnsq_lite.http.fields import fill
from gnsq_lite.http.lookupd import is_unknown_topic
from gnsq_lite.http.nodes import parse_lookup, parse_node
from gnsq_lite.http.reply import Reply, unwrap
from gnsq_lite.http.stats import NsqdStats
from tests.profiles import repeats

URL = "http://x/lookup"
NODE = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151}

ODD_NUMBERS = st.just(10**400) | st.text("-+_.0e5", min_size=1, max_size=4)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | ODD_NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["producers", "channels", "partitions", "meta", "topics", "tombstones", "broadcast_address", "tcp_port"]
    + ["status_code", "data", "clients", "topic_name", "channel_name", "e2e_processing_latency", "percentiles"]
    + ["memory", "version", "health", "start_time", "depth", "quantile", "value"]
)
ODD_OBJECTS = st.recursive(
    JSON_VALUES,
    lambda inner: st.dictionaries(KEYS, inner | st.lists(inner, max_size=3), max_size=5),
    max_leaves=20,
)


def parse_stats(url: str, data: Any) -> NsqdStats:
    return fill(url, NsqdStats, data)


def must_be_printable(error: Exception) -> None:
    assert str(error).isprintable()


@pytest.mark.rule("DISC-6")
@settings(max_examples=repeats(300))
@given(ODD_OBJECTS)
def test_any_json_is_a_result_or_a_typed_error(document: Any) -> None:
    for parse in (parse_lookup, parse_stats, parse_node):
        try:
            result = parse(URL, unwrap(URL, document))
        except (errors.HTTPResponseError, errors.HTTPStatusError) as error:
            must_be_printable(error)
        else:
            repr(result)


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_typed_error(body: bytes) -> None:
    try:
        Reply(URL, 200, "text/html; \x1b", body).json()
    except errors.HTTPResponseError as error:
        must_be_printable(error)


def test_the_error_for_an_answer_without_json_shows_its_type_and_start() -> None:
    with pytest.raises(errors.HTTPResponseError) as caught:
        Reply(URL, 200, "text/html", b"<html>\r\n" + b"x" * 5000).json()
    assert str(caught.value).startswith(f"{URL}: the response is not JSON (text/html): '<html>")
    assert len(str(caught.value)) < 250


@pytest.mark.rule("DISC-3")
def test_answers_with_and_without_the_wrapper_give_the_same_result() -> None:
    bare = {"channels": ["c"], "producers": [NODE]}
    wrapped = {"status_code": 200, "status_txt": "OK", "data": bare}
    assert parse_lookup(URL, unwrap(URL, wrapped)) == parse_lookup(URL, unwrap(URL, bare))


def test_an_error_inside_a_wrapper_is_a_status_error() -> None:
    document = {"status_code": 404, "status_txt": "TOPIC_NOT_FOUND\n", "data": None}
    with pytest.raises(errors.HTTPStatusError) as caught:
        unwrap(URL, document)
    assert (caught.value.status, caught.value.text) == (404, "TOPIC_NOT_FOUND\\n")
    assert is_unknown_topic(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize(
    ("status", "text", "unknown"),
    [
        (404, "TOPIC_NOT_FOUND", True),
        (500, "TOPIC_NOT_FOUND", True),
        (404, "Key not found", True),
        (404, "Topic has no channel, should init at least one for the new topic", True),
        (404, "NOT_FOUND", False),
        (404, "page not found", False),
        (403, "TOPIC_NOT_FOUND", False),
        (500, "INTERNAL_ERROR", False),
    ],
)
@pytest.mark.rule("DISC-5")
def test_only_the_texts_of_nsqlookupd_mean_an_unknown_topic(status: int, text: str, unknown: bool) -> None:
    assert is_unknown_topic(errors.HTTPStatusError(URL, status, text)) is unknown


@pytest.mark.rule("YZ-2")
def test_partitions_meta_and_nulls_of_youzan_are_read() -> None:
    meta = {"partition_num": 2, "replica": 1, "extend_support": True, "ordered": False}
    found = parse_lookup(
        URL, {"channels": None, "meta": meta, "partitions": {"0": NODE, "1": NODE}, "producers": [NODE]}
    )
    assert found.meta is not None
    assert (found.meta.partition_num, found.meta.extend_support, found.meta.multi_part) == (2, True, False)
    assert sorted(found.partitions) == [0, 1]
    assert found.partitions[1].tcp_address == ("10.0.0.1", 4150)
    for nothing in ({"partitions": None, "producers": None}, {"producers": None}, {"producers": [], "partitions": {}}):
        empty = parse_lookup(URL, nothing)
        assert (empty.found, empty.producers, empty.partitions) == (True, (), {})


def test_a_node_lists_topics_tombstones_and_partitions() -> None:
    node = parse_node(URL, {**NODE, "topics": ["a", "b"], "tombstones": [False, True], "partitions": {"a": ["0", "3"]}})
    assert (node.tombstones, node.partitions) == ({"a": False, "b": True}, {"a": (0, 3)})


def test_control_characters_are_escaped_in_strings_but_not_in_raw() -> None:
    node = parse_node(URL, {**NODE, "hostname": "h\x1b[2J\n", "version": None})
    assert (node.hostname, node.version) == ("h\\x1b[2J\\n", "")
    assert node.raw["hostname"] == "h\x1b[2J\n"


def test_stats_of_nsqd_are_read_with_clients() -> None:
    client = {"client_id": "me", "ready_count": 5, "connect_ts": 1700000000}
    channel = {"channel_name": "c", "depth": 4, "clients": [client], "e2e_processing_latency": {"count": 2}}
    topic = {"topic_name": "t", "topic_partition": "3", "is_leader": True, "channels": [channel]}
    stats = parse_stats(
        URL, {"version": "1.3.0", "health": "OK", "start_time": 5, "topics": [topic], "producers": [client]}
    )
    found = stats.channel("t", "c")
    assert found is not None
    assert found.raw["e2e_processing_latency"] == {"count": 2}
    assert (found.clients[0].ready_count, found.clients[0].connect_ts) == (5, 1700000000)
    assert (stats.topics[0].topic_partition, stats.topics[0].is_leader) == (3, True)
    assert (stats.producers[0].client_id, stats.channel("t", "x"), stats.topic("x")) == ("me", None, None)


@pytest.mark.parametrize("sent", ["-5", "0", "9223372036854775807", "-9223372036854775808", "18446744073709551615"])
def test_a_whole_number_may_be_a_json_string(sent: str) -> None:
    document = {"version": "1", "health": "OK", "topics": [{"topic_name": "t", "depth": sent}]}
    assert parse_stats(URL, document).topics[0].depth == int(sent)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"topics": None}, None),
        ({"topics": [{}]}, "TopicStats has no topic_name"),
        ({"topics": [{"topic_name": 5}]}, "TopicStats.topic_name is not a string"),
        ({"topics": [{"topic_name": "t", "depth": 1.5}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "depth": True}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "depth": "9" * 21}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "depth": "--5"}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "depth": "5\n"}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "depth": "\u0665"}]}, "TopicStats.depth is not a whole number"),
        ({"topics": [{"topic_name": "t", "paused": 1}]}, "TopicStats.paused is not true or false"),
        ({"version": None}, "NsqdStats has no version"),
        ({"start_time": float("inf")}, "NsqdStats.start_time is not a whole number"),
        ({"topics": "x"}, "topics is not a list"),
    ],
)
def test_an_error_names_the_missing_key_or_the_wrong_type(change: dict[str, Any], why: str | None) -> None:
    document = {"version": "1", "health": "OK", "topics": [], **change}
    if why is None:
        assert parse_stats(URL, document).topics == ()
        return
    with pytest.raises(errors.HTTPResponseError) as caught:
        parse_stats(URL, json.loads(json.dumps(document)))
    assert caught.value.why == why
