"""The dialect turns nsqlookupd's responses and the user's options into commands and message layouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint, Lookup, PublishRequest
from gnsq_lite.errors import (
    AuthErrorError,
    AuthFailedError,
    BadChannelError,
    BadTopicError,
    ConnectionLost,
    HeartbeatTimeout,
    NotLeaderError,
    OptionError,
    ProtocolError,
    SubOrderIsMustError,
    TopicNotExistError,
)
from gnsq_lite.youzan.commands import StartOffset
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import PublishReceipt
from gnsq_lite.youzan.options import ExtFilter
from tests.golden.youzan import answer, conversation

OWNER = SimpleNamespace(read_at=0.0, topic="t", channel="c", address="a:1", msg_timeout=60.0, max_msg_timeout=900.0)
A, B = Endpoint("10.0.0.1", 4150), Endpoint("10.0.0.2", 4150)


def node(endpoint: Endpoint) -> dict[str, Any]:
    return {"broadcast_address": endpoint.host, "tcp_port": endpoint.port}


def said(
    dialect: YouzanDialect, leaders: list[Endpoint | None], *, role: Any = "write", topic: str = "t", **meta: Any
) -> Lookup:
    listed = {str(n): node(e) for n, e in enumerate(leaders) if e is not None}
    data = {"meta": {"partition_num": len(leaders), **meta}, "partitions": listed, "producers": [node(A), node(B)]}
    return dialect.parse_lookup(topic, role, data)


def request(**keywords: Any) -> PublishRequest:
    return PublishRequest(**{"topic": "t", "bodies": (b"x",), **keywords})


# -- consuming --


@pytest.mark.rule("YZ-3")
def test_a_reader_connects_to_each_partition_or_to_the_named_ones() -> None:
    assert said(YouzanDialect(), [A, B, A], role="read").endpoints == (
        Endpoint("10.0.0.1", 4150, 0),
        Endpoint("10.0.0.2", 4150, 1),
        Endpoint("10.0.0.1", 4150, 2),
    )
    some = YouzanDialect(partitions=[2, 1, 9])
    assert [e.partition for e in said(some, [A, B, A], role="read").endpoints] == [1, 2]
    assert [e.partition for e in said(some, [A, B, A], role="write").endpoints] == [0, 1, 2]


@pytest.mark.rule("YZ-3")
def test_a_partition_that_the_topic_does_not_have_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    dialect = YouzanDialect(partitions=[1, 5, 7])
    said(dialect, [A, None], role="read")  # 1 has no leader now, and is one of the topic's
    said(dialect, [A, B], role="read")
    assert [record.getMessage() for record in caplog.records] == [
        "t has 2 partitions: the Reader waits for partitions [5, 7] (partitions=)"
    ]
    caplog.clear()
    said(YouzanDialect(partitions=[0, 1]), [A, B], role="read")
    YouzanDialect(partitions=[5]).parse_lookup("t", "read", {"producers": [node(A)]})
    assert not caplog.records


def test_named_partitions_of_a_server_alone_are_all_there() -> None:
    lookup = YouzanDialect(partitions=[0, 1]).parse_lookup("t", "read", {"producers": [node(A)]})
    assert lookup.endpoints == (Endpoint("10.0.0.1", 4150, 0), Endpoint("10.0.0.1", 4150, 1))


@pytest.mark.rule("YZ-7")
def test_an_ordered_topic_subscribed_without_ordered_says_what_to_change() -> None:
    assert "ordered=True" in str(SubOrderIsMustError("E_SUB_ORDER_IS_MUST", "x"))
    dialect = YouzanDialect(ordered=None)
    said(dialect, [A], role="read", ordered=True)
    assert dialect.is_ordered("t")


@pytest.mark.rule("YZ-6")
def test_ordered_is_refused_for_a_topic_that_is_not_ordered() -> None:
    dialect = YouzanDialect(ordered=True)
    said(dialect, [A], role="read", ordered=False)
    with pytest.raises(
        OptionError, match=r"ordered=True.* omit the option, or create the topic with orderedmulti=true"
    ):
        dialect.subscribe("t", "c", A)
    said(dialect, [A], role="read", ordered=True)
    assert dialect.subscribe("t", "c", A).startswith(b"SUB_ORDERED t c")


@pytest.mark.rule("YZ-17")
def test_a_start_offset_is_only_sent_where_the_server_heeds_the_partition() -> None:
    dialect = YouzanDialect(start_offset=StartOffset.at_message(1))
    said(dialect, [A, B, A], role="read")
    assert dialect.subscribe("t", "c", Endpoint("10.0.0.2", 4150, 1)) == b"SUB_ADVANCED t c 1 msgcount:1\n"
    with pytest.raises(OptionError, match="leads 2 partitions"):
        dialect.subscribe("t", "c", Endpoint("10.0.0.1", 4150, 0))


@pytest.mark.rule("YZ-15")
def test_extend_support_follows_the_topic_unless_the_user_says() -> None:
    dialect = YouzanDialect()
    assert dialect.identify_extra("t", A) == {}
    said(dialect, [A], role="read", extend_support=True)
    assert dialect.identify_extra("t", A) == {"extend_support": True}
    assert dialect.identify_extra("", A) == {}  # a Writer's connection
    forced = YouzanDialect(extend_support=False)
    said(forced, [A], role="read", extend_support=True)
    assert forced.identify_extra("t", A) == {}


@pytest.mark.rule("YZ-16")
def test_tag_and_filter_are_in_identify() -> None:
    dialect = YouzanDialect(desired_tag="tagA", ext_filter=ExtFilter(key="k", value="v"))
    extra = dialect.identify_extra("t", A)
    assert extra["desired_tag"] == "tagA"
    assert extra["ext_filter"]["filter_data"] == "v"


@pytest.mark.rule("YZ-12")
def test_a_later_answer_without_metainfo_does_not_make_it_forget() -> None:
    dialect = YouzanDialect()
    said(dialect, [A], role="read", extend_support=True)
    dialect.parse_lookup("t", "read", answer("lookup_read")["body"]["data"])
    assert dialect.layout_of("t").extend_support


@pytest.mark.rule("YZ-18")
def test_a_connection_that_ends_or_falls_silent_is_replaced_after_a_fresh_lookup() -> None:
    for error in (ConnectionLost("a:1", "end of stream"), HeartbeatTimeout("a:1", "silent"), ProtocolError("x")):
        assert YouzanDialect().calls_for_lookup(error)
    assert YouzanDialect().calls_for_lookup(NotLeaderError("E"))
    assert YouzanDialect().calls_for_lookup(TopicNotExistError("E"))
    for passes in (AuthFailedError("E_AUTH_FAILED"), AuthErrorError("E_AUTH_ERROR"), BadChannelError("E")):
        assert YouzanDialect().calls_for_lookup(passes) is not passes.is_permanent
    assert not YouzanDialect().calls_for_lookup(BadTopicError("E"))


# -- publishing --


def test_the_command_follows_from_what_was_asked_for() -> None:
    dialect, at = YouzanDialect(), Endpoint("a", 1, 3)
    verbs = {
        b"PUB": request(),
        b"MPUB": request(bodies=(b"x", b"y"), batch=True),
        b"PUB_TRACE": request(trace_id=0),
        b"MPUB_TRACE": request(batch=True, trace_id=5),
        b"PUB_EXT": dialect.check(request(headers={}), 100),
        b"MPUB_EXT": request(encoded_headers=[b"{}"], batch=True),
    }
    for verb, asked in verbs.items():
        assert dialect.encode(asked, at, None).startswith(verb + b" t 3\n")
    traced = dialect.check(request(headers={"a": 1}, trace_id=5), 100)
    assert b'"##trace_id":"5"' in dialect.encode(traced, at, None)
    with pytest.raises(OptionError, match="DPUB"):
        dialect.check(request(defer=1.0), 100)


@pytest.mark.rule("YZ-9")
def test_trace_is_switched_on_per_writer_and_per_call() -> None:
    at = Endpoint("a", 1, 0)
    writer = YouzanDialect(trace=True)
    first, second = (writer.encode(request(), at, None) for _ in range(2))
    assert first.startswith(b"PUB_TRACE ")
    assert first != second  # each has an id of its own
    assert writer.encode(request(trace_id=7), at, None).endswith((7).to_bytes(8, "big") + b"x")
    assert b'"##trace_id":"9"' in writer.encode(writer.check(request(headers={}, trace_id=9), 100), at, None)
    assert YouzanDialect().encode(request(), at, None).startswith(b"PUB ")
    (reply,) = [data for kind, data in conversation("pub_trace").frames() if kind == 0]
    assert isinstance(writer.receipt(reply), PublishReceipt)
    with pytest.raises(ProtocolError):
        writer.receipt(b"OK no")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(OptionError, match="dialect"):
        YouzanDialect(colour="red")


@pytest.mark.rule("YZ-15")
def test_a_batch_with_headers_is_not_sent_to_a_topic_that_takes_none() -> None:
    dialect, at = YouzanDialect(), Endpoint("10.0.0.1", 4150, 0)
    batch, one = request(encoded_headers=[b'{"a":1}'], batch=True), dialect.check(request(headers={"a": 1}), 100)
    with pytest.raises(OptionError, match="not an ext topic"):
        dialect.encode(batch, at, said(dialect, [A]))
    assert b'{"a":1}' in dialect.encode(batch, at, said(dialect, [A], extend_support=True))
    # nsqd refuses one message in order; nsqlookupd's response may be older than the topic's upgrade
    assert b'{"a":1}' in dialect.encode(one, at, said(dialect, [A]))


@pytest.mark.rule("YZ-5")
def test_a_topic_does_not_lose_partitions() -> None:
    dialect = YouzanDialect()
    known = [said(dialect, leaders).meta.partition_num for leaders in ([A, B], [A, B, A, B], [A, B], [])]
    assert known == [2, 4, 4, 4]
