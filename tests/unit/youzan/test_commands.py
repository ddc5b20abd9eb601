"""Commands are, byte for byte, those that Youzan's servers were seen to accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import BodyTypeError, InvalidBody, InvalidName, MessageTooLarge, OptionError
from gnsq_lite.youzan import commands
from gnsq_lite.youzan.commands import StartOffset
from gnsq_lite.youzan.headers import check_tag, encode_headers
from tests.golden.youzan import conversation

TRACE = 0x1122334455667788
HEADER = b'{"k": "v"}'

SENT: list[tuple[str, int, bytes]] = [
    ("pub_ok", 1, commands.publish("gplain", b"hello", 0)),
    ("pub_ok", 2, commands.publish("gplain", b"hello")),
    ("mpub_ok", 1, commands.multipublish("gplain", [b"a", b"bc"], 0)),
    ("pub_trace", 1, commands.publish("gplain", b"traced", 0, trace_id=TRACE)),
    ("pub_trace_zero", 1, commands.publish("gplain", b"traced", 1, trace_id=0)),
    ("mpub_trace", 1, commands.multipublish("gplain", [b"one", b"two"], 0, trace_ids=[TRACE, 0])),
    ("pub_ext", 1, commands.publish("gext", b"body1", 0, header=HEADER)),
    ("pub_ext_trace", 1, commands.publish("gext", b"body1", 0, header=encode_headers({}, 4660))),
    ("mpub_ext", 1, commands.multipublish("gext", [b"a", b"b"], 0, headers=[HEADER, b""])),
    ("sub_plain", 1, commands.subscribe("gplain", "c1", 0)),
    ("sub_advanced", 1, commands.subscribe_advanced("gplain", "c2", 0)),
    ("sub_advanced_end", 1, commands.subscribe_advanced("gplain", "c3", 0, StartOffset.end())),
    ("sub_advanced_count", 1, commands.subscribe_advanced("gplain", "c4", 0, StartOffset.at_message(1))),
    ("sub_advanced_byte", 1, commands.subscribe_advanced("gplain", "c5", 0, StartOffset.at_byte(0))),
    ("sub_advanced_time", 1, commands.subscribe_advanced("gplain", "c6", 0, StartOffset.at_time(1_000_000_000.9))),
    ("sub_ordered", 1, commands.subscribe("gordered", "c1", 0, b"SUB_ORDERED")),
    ("error_sub_order", 1, commands.subscribe("gordered", "c1", 0, b"SUB_ORDER")),
]


@pytest.mark.rule("YZ-3")
@pytest.mark.rule("YZ-4")
@pytest.mark.rule("YZ-9")
@pytest.mark.rule("YZ-15")
@pytest.mark.rule("YZ-17")
@pytest.mark.parametrize(("name", "turn", "command"), SENT)
def test_each_command_is_what_a_real_server_accepted(name: str, turn: int, command: bytes) -> None:
    assert conversation(name).sent[turn] == command


def test_a_subscription_without_a_partition_names_none() -> None:
    assert commands.subscribe("t", "c") == b"SUB t c\n"


NAMED: list[Callable[[str], bytes]] = [
    lambda topic: commands.subscribe(topic, "c", 0),
    lambda topic: commands.subscribe(topic, "c", 0, b"SUB_ORDERED"),
    lambda topic: commands.subscribe_advanced(topic, "c", 0),
    lambda topic: commands.publish(topic, b"x", 0),
    lambda topic: commands.multipublish(topic, [b"x"], 0),
    lambda topic: commands.publish(topic, b"x", 0, trace_id=0),
    lambda topic: commands.multipublish(topic, [b"x"], 0, trace_ids=[0]),
    lambda topic: commands.publish(topic, b"x", 0, header=b"{}"),
    lambda topic: commands.multipublish(topic, [b"x"], 0, headers=[b"{}"]),
]


@pytest.mark.parametrize("make", NAMED)
@pytest.mark.parametrize("name", ["t\n", "a b", "", "x" * 65, b"t"])
def test_a_bad_topic_is_refused_before_bytes_exist(make: Callable[[Any], bytes], name: Any) -> None:
    with pytest.raises(InvalidName):
        make(name)


BODIED: list[Callable[[Any], bytes]] = [
    lambda body: commands.publish("t", body, 0),
    lambda body: commands.multipublish("t", [body], 0),
    lambda body: commands.publish("t", body, 0, trace_id=0),
    lambda body: commands.multipublish("t", [body], 0, trace_ids=[0]),
    lambda body: commands.publish("t", body, 0, header=b"{}"),
    lambda body: commands.multipublish("t", [body], 0, headers=[b"{}"]),
]


@pytest.mark.parametrize("make", BODIED)
def test_a_bad_body_is_refused_before_bytes_exist(make: Callable[[Any], bytes]) -> None:
    with pytest.raises(BodyTypeError, match="encode"):
        make("text")
    with pytest.raises(InvalidBody, match="empty"):
        make(b"")


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (StartOffset.at_message, 0),
        (StartOffset.at_message, 2**63),
        (StartOffset.at_message, True),
        (StartOffset.at_byte, -1),
        (StartOffset.at_byte, 1.5),
        (StartOffset.at_time, -1),
        (StartOffset.at_time, float("nan")),
        (StartOffset.at_time, float("inf")),
        (StartOffset.at_time, "now"),
    ],
)
def test_a_start_offset_the_server_would_refuse_is_refused(make: Callable[[Any], StartOffset], value: Any) -> None:
    with pytest.raises(OptionError, match="start_offset"):
        make(value)


def test_a_start_offset_is_sent_with_a_partition_as_the_fourth_word() -> None:
    assert commands.subscribe_advanced("t", "c", None, StartOffset.end()) == b"SUB_ADVANCED t c 0 special:-1\n"


# -- headers --


@pytest.mark.rule("YZ-16")
def test_headers_are_json_with_the_trace_id_as_a_string_of_digits() -> None:
    assert encode_headers({"a": 1, "b": ["中"]}) == '{"a":1,"b":["中"]}'.encode()
    assert encode_headers({}, 2**64 - 1) == b'{"##trace_id":"18446744073709551615"}'
    assert encode_headers({"##client_dispatch_tag": "tagA"}) == b'{"##client_dispatch_tag":"tagA"}'


@pytest.mark.parametrize(
    "headers",
    [
        [],
        "{}",
        {1: 2},
        {"a": object()},
        {"a": float("nan")},
        {"a": "\ud800"},
        {"##other": "x"},
        {"##client_dispatch_tag": "a b"},
        {"##client_dispatch_tag": ""},
        {"##trace_id": "4660"},
        {"a": "x" * 65534},
    ],
)
def test_headers_the_server_would_trip_over_are_refused(headers: Any) -> None:
    with pytest.raises(OptionError):
        encode_headers(headers)


@pytest.mark.rule("YZ-15")
def test_headers_may_have_65506_bytes_and_no_more() -> None:
    # nsqd takes some more, and panics at each delivery of such a message, after each restart again
    most = encode_headers({"a": "x" * 65498})
    assert len(most) == 65506
    assert commands.publish("t", b"x", header=most).count(most) == 1
    assert commands.multipublish("t", [b"x", b"y"], headers=[most, most]).count(most) == 2
    assert len(encode_headers({"a": "x" * 65481}, trace_id=0)) == 65506
    for refuse in (
        lambda: encode_headers({"a": "x" * 65499}),
        lambda: encode_headers({"a": "x" * 65482}, trace_id=0),
    ):
        with pytest.raises(OptionError, match="65506"):
            refuse()


@pytest.mark.parametrize("tag", ["", "a b", "x" * 101, "tag\n", 5, None])
def test_a_tag_is_up_to_100_letters(tag: Any) -> None:
    with pytest.raises(OptionError):
        check_tag(tag)
    assert check_tag("x" * 100) == "x" * 100


@given(
    st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
)
def test_any_headers_are_encoded_or_refused_with_the_one_error(headers: dict[str, Any]) -> None:
    try:
        data = encode_headers(headers)
    except OptionError:
        return
    assert data.startswith(b"{")


def test_a_batch_too_large_for_its_size_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsq_lite.wire.commands.MAX_INT32", 100)
    monkeypatch.setattr("gnsq_lite.wire.commands.pack", lambda head, bodies, most: None)  # as where it is too large
    with pytest.raises(MessageTooLarge):
        commands.multipublish("t", [b"x" * 97], 0)
