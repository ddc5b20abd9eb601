"""Plain NSQ until a server shows that it is one of Youzan's (YZ-14)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint, PlainDialect, PublishRequest
from gnsq_lite.dialects import resolve
from gnsq_lite.errors import NotLeaderError, OptionError
from gnsq_lite.message import Message
from gnsq_lite.youzan.auto import AutoDialect, is_youzan_answer
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import YouzanMessage
from tests.golden.youzan import answer

pytestmark = pytest.mark.rule("YZ-14")

NODE = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "version": "1.3.0"}
PLAIN = {"channels": [], "producers": [NODE]}
MARKED = "0.3.7-HA.1.13.0"
AT = Endpoint("10.0.0.1", 4150)


def captured(name: str) -> Any:
    return answer(name)["body"]["data"]


def test_names_give_dialects_and_youzans_options_decide() -> None:
    assert isinstance(resolve("nsq"), PlainDialect)
    assert isinstance(resolve("youzan", ordered=True), YouzanDialect)
    assert isinstance(resolve("auto"), AutoDialect)
    assert isinstance(resolve("auto", ordered=True), YouzanDialect)
    with pytest.raises(OptionError, match="'auto', 'nsq' or 'youzan'"):
        resolve("kafka")


@pytest.mark.parametrize("name", ["lookup_read", "lookup_read_meta", "lookup_write_meta", "lookup_unknown_read"])
def test_youzans_answers_are_told_from_plain_ones(name: str) -> None:
    assert is_youzan_answer(captured(name))
    assert not is_youzan_answer(PLAIN)
    assert not is_youzan_answer(None)
    assert not is_youzan_answer({"producers": [{**NODE, "version": MARKED}]})  # anybody may register


@pytest.mark.parametrize("name", ["lookup_read", "lookup_unknown_read"])
def test_a_reader_asks_for_more_only_one_that_shows_to_be_youzans(name: str) -> None:
    dialect = AutoDialect()
    assert dialect.lookup_path("t", "read") == "/lookup?topic=t"
    assert dialect.fuller_path("t", "read", PLAIN) is None
    assert dialect.fuller_path("t", "read", captured(name)) == "/lookup?topic=t&access=r&metainfo=true"


def test_a_reader_deals_with_each_answer_and_endpoint_on_its_own() -> None:
    dialect = AutoDialect()
    assert dialect.look_up_after(NotLeaderError("E_FAILED_ON_NOT_LEADER", "")) is None
    endpoints = dialect.parse_lookup("gplain", "read", captured("lookup_read_meta")).endpoints
    assert [e.partition for e in endpoints] == [0, 1]
    assert dialect.subscribe("gplain", "c", endpoints[1]) == (b"SUB gplain c 1\n",)
    assert dialect.parse_lookup("gplain", "read", PLAIN).endpoints == (AT,)
    assert dialect.subscribe("gplain", "c", AT) == (b"SUB gplain c\n",)
    plain = dialect.message_factory("gplain", AT, 0, SimpleNamespace(version="1.3.0"))
    assert plain is Message
    assert dialect.look_up_after(NotLeaderError("E_FAILED_ON_NOT_LEADER", "")) == 0.2


def test_a_writer_asks_each_nsqlookupd_what_it_is_and_plain_ones_for_nsqds() -> None:
    dialect = AutoDialect()
    assert dialect.lookup_path("", "write") == "/info"
    itself = {"version": MARKED, "ha_support": False}
    assert dialect.fuller_path("", "write", {"version": "1.3.0"}) == dialect.fuller_path("", "write", {}) == "/nodes"
    assert dialect.fuller_path("", "write", itself) is dialect.fuller_path("", "write", PLAIN) is None
    said = {"plain": dialect.parse_lookup("", "write", PLAIN)}
    assert said["plain"].endpoints == (AT,)
    dialect.decide(said)
    assert not dialect.needs_route("t")
    said["youzan"] = dialect.parse_lookup("", "write", itself)
    assert said["youzan"].endpoints == ()
    dialect.decide(said)
    assert dialect.needs_route("t")
    assert dialect.lookup_path("t", "write").startswith("/lookup?topic=t&access=w")
    dialect.decide({**said, "youzan": said["plain"]})  # it was replaced
    assert not dialect.needs_route("t")


def test_a_topic_goes_to_plain_nsqds_only_where_youzans_do_not_know_it() -> None:
    dialect = AutoDialect()
    youzans = dialect.parse_lookup("gplain", "write", captured("lookup_write_meta"))
    plain, unknown = (dialect.parse_lookup("gplain", "write", {"producers": nodes}) for nodes in ([NODE], []))
    dialect.decide({"y": dialect.parse_lookup("", "write", {"version": MARKED})})
    none: set[str] = set()
    assert dialect.agreed(youzans, {"y": youzans, "p": plain}, none, none) is youzans
    assert dialect.agreed(plain, {"y": youzans, "p": plain}, none, none) is None
    assert dialect.agreed(plain, {"y": unknown, "p": plain}, none, none) is plain
    for failed, missing in ((none, {"y"}), ({"y"}, none)):  # it may know it
        settled = dialect.agreed(plain, {"p": plain}, failed, missing)
        assert settled is not None
        assert settled.endpoints == ()
    request = PublishRequest(topic="gplain", bodies=(b"x",), key=b"k")
    assert dialect.choose(request, youzans.endpoints, youzans).partition is not None
    assert dialect.choose(request, plain.endpoints, plain) == AT
    with pytest.raises(OptionError, match="Youzan"):
        dialect.encode(request, AT, plain)


@pytest.mark.parametrize(("version", "kind"), [("1.3.0", Message), ("", Message), ("0.3.7-HA.1.13.0", YouzanMessage)])
def test_without_a_lookup_the_reply_to_identify_tells_how_ids_are_read(version: str, kind: type) -> None:
    negotiated = SimpleNamespace(version=version)
    owner = SimpleNamespace(read_at=0.0, msg_timeout=60.0, negotiated=negotiated)
    make = AutoDialect().message_factory("t", AT, 0, negotiated)
    message = make(owner, 0, 1, b"\0" * 7 + b"\5" + b"\0" * 8, b"body")
    assert type(message) is kind
    assert message.internal_id == (5 if kind is YouzanMessage else None)


@pytest.mark.parametrize("asked", [{"key": b"k"}, {"partition": 0}, {"trace_id": 1}, {"headers": {}}])
def test_what_only_youzan_can_do_is_refused_with_what_to_change(asked: dict[str, Any]) -> None:
    request = PublishRequest(topic="t", bodies=(b"x",), **asked)
    with pytest.raises(OptionError, match="dialect='youzan'"):
        AutoDialect().encode(request, AT, None)
