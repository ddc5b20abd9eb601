"""Answers of Youzan's nsqlookupd, as they were captured, with null and missing parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import HTTPResponseError
from gnsq_lite.http.reply import unwrap
from gnsq_lite.youzan.lookup import EMPTY, TopicLayout, lookup_path, parse_layout, parse_lookupds
from tests.golden.youzan import answer

NODE = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151}


def layout_of(data: Any) -> TopicLayout:
    return parse_layout(data, {})


@pytest.mark.rule("YZ-2")
def test_readers_ask_for_reading_and_writers_for_writing() -> None:
    assert lookup_path("a.b#ephemeral", "read") == "/lookup?topic=a.b%23ephemeral&access=r&metainfo=true"
    assert lookup_path("t", "write") == "/lookup?topic=t&access=w&metainfo=true"


def captured(name: str) -> Any:
    """Return a captured answer as the HTTP client decodes it, without its wrapper."""
    return unwrap("http://nsqlookupd", answer(name)["body"])


@pytest.mark.rule("YZ-2")
@pytest.mark.parametrize("form", ["", "_v1"])
def test_both_reply_forms_give_the_same_layout(form: str) -> None:
    data = captured(f"lookup_write_meta{form}")
    layout = layout_of(data)
    assert (layout.partition_num, layout.extend_support, layout.ordered) == (2, False, False)
    ports = {int(number): node["tcp_port"] for number, node in data["partitions"].items()}
    assert {number: endpoint.port for number, endpoint in layout.partitions.items()} == ports
    assert [e.partition for e in layout.endpoints()] == [0, 1]
    assert len(layout.producers) == 2
    assert layout.led_by(layout.partitions[1].address) == (1,)


def test_ordered_and_ext_topics_are_told_by_their_meta() -> None:
    assert layout_of(captured("lookup_read_meta")).ordered is True
    assert layout_of(captured("lookup_ext_meta")).extend_support is True
    assert layout_of(captured("lookup_read")).has_meta is False


def test_a_missing_partition_is_missing_and_does_not_change_the_number() -> None:
    layout = layout_of(captured("lookup_one_partition"))
    assert (layout.partition_num, tuple(layout.partitions)) == (2, (1,))


def test_an_unknown_topic_has_no_endpoints() -> None:
    assert layout_of(captured("lookup_unknown_read")).endpoints() == ()


@pytest.mark.parametrize("document", [None, {}, {"partitions": None, "producers": None, "meta": None}])
def test_null_is_nothing(document: Any) -> None:
    assert layout_of(document) == EMPTY


def test_partitions_without_a_leader_give_no_endpoint_though_nodes_are_listed() -> None:
    layout = layout_of({"meta": {"partition_num": 2}, "partitions": {}, "producers": [NODE]})
    assert (layout.endpoints(), layout.partition_num) == ((), 2)


def test_a_server_that_knows_no_partitions_gives_its_nodes() -> None:
    layout = layout_of({"producers": [NODE, NODE, {**NODE, "tcp_port": "4250"}]})
    assert layout.endpoints() == (Endpoint("10.0.0.1", 4150), Endpoint("10.0.0.1", 4250))


@pytest.mark.parametrize(
    "document",
    [
        [],
        "x",
        {"partitions": []},
        {"partitions": {"x": NODE}},
        {"partitions": {"-1": NODE}},
        {"partitions": {"255": NODE}},
        {"partitions": {"0": {}}},
        {"partitions": {"0": {**NODE, "tcp_port": 0}}},
        {"producers": {}},
        {"producers": [None]},
        {"meta": []},
        {"meta": {"partition_num": -1}},
        {"meta": {"partition_num": "2"}},
        {"meta": {"partition_num": True}},
        {"meta": {"ordered": "yes"}},
    ],
)
def test_a_bad_answer_is_the_one_error(document: Any) -> None:
    with pytest.raises(HTTPResponseError):
        layout_of(document)


def test_a_partition_of_no_use_is_left_out_and_counts_as_one_without_a_leader() -> None:
    bad = {**NODE, "tcp_port": 70000}
    meta = {"partition_num": 3}
    left_out: dict[str, None] = {}
    partitions = {"0": NODE, "1": bad, "x": NODE}
    layout = parse_layout({"meta": meta, "partitions": partitions, "producers": [bad, NODE]}, left_out)
    assert layout.partitions == {0: Endpoint("10.0.0.1", 4150, 0)}
    assert layout.producers == (Endpoint("10.0.0.1", 4150),)
    assert layout.partition_num == 3
    assert list(left_out) == [
        "a producer without a usable address: '10.0.0.1', port 70000",
        "no partition has the number 'x'",
    ]


def test_nodes_are_no_substitute_for_partitions_that_are_of_no_use() -> None:
    layout = layout_of({"partitions": {"0": {**NODE, "tcp_port": 0}}, "producers": [NODE]})
    assert (layout.endpoints(), layout.has_partitions) == ((), True)


def test_more_entries_of_no_use_than_anybody_reads_are_not_kept() -> None:
    bad = [{**NODE, "tcp_port": 70000 + number} for number in range(1000)]
    left_out: dict[str, None] = {}
    parse_layout({"producers": [NODE, *bad]}, left_out)
    assert len(left_out) == 100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["partitions", "producers", "meta", "0", "partition_num", "broadcast_address", "tcp_port"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_json_is_a_layout_or_the_one_error(document: Any) -> None:
    for parse in (layout_of, parse_lookupds):
        try:
            parse(document)
        except HTTPResponseError:
            pass


@pytest.mark.rule("YZ-1")
@pytest.mark.parametrize("form", ["", "_v1"])
def test_listlookup_gives_http_addresses_with_ports_that_are_strings(form: str) -> None:
    data = captured(f"listlookup{form}")
    port = int(data["lookupdleader"]["HttpPort"])
    assert parse_lookupds(data) == (("127.0.0.1", port),)


def test_listlookup_of_a_server_in_no_cluster_is_empty() -> None:
    assert parse_lookupds(None) == ()
    assert parse_lookupds({"lookupdleader": {"NodeIP": ""}, "lookupdnodes": None}) == ()


def test_the_leader_comes_first_and_nobody_twice() -> None:
    one = {"NodeIP": "10.0.0.1", "HttpPort": "4161"}
    two = {"NodeIP": "10.0.0.2", "HttpPort": 4161}
    document = {"lookupdleader": two, "lookupdnodes": [one, two]}
    assert parse_lookupds(document) == (("10.0.0.2", 4161), ("10.0.0.1", 4161))


@pytest.mark.parametrize("node", [None, {}, {"NodeIP": "a b", "HttpPort": "1"}, {"NodeIP": "a", "HttpPort": "x"}])
def test_a_bad_listing_is_the_one_error(node: Any) -> None:
    with pytest.raises(HTTPResponseError):
        parse_lookupds({"lookupdnodes": [node]})
