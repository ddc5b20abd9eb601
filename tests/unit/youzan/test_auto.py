"""Plain NSQ until a server shows that it is one of Youzan's (YZ-14)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint, PlainDialect, PublishRequest
from gnsq_lite.dialects import resolve
from gnsq_lite.errors import OptionError
from gnsq_lite.message import Message
from gnsq_lite.youzan.auto import AutoDialect, is_youzan_answer
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import YouzanMessage
from tests.golden.youzan import answer

pytestmark = pytest.mark.rule("YZ-14")

NODE = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "version": "1.3.0"}
PLAIN = {"channels": [], "producers": [NODE]}
AT = Endpoint("10.0.0.1", 4150)


def captured(name: str) -> Any:
    return answer(name)["body"]["data"]


def test_names_give_dialects_and_youzans_options_decide() -> None:
    assert isinstance(resolve("nsq"), PlainDialect)
    assert isinstance(resolve("youzan", ordered=True), YouzanDialect)
    assert isinstance(resolve("auto"), AutoDialect)
    assert isinstance(resolve("auto", ordered=True), YouzanDialect)
    with pytest.raises(OptionError, match="auto, nsq, youzan"):
        resolve("kafka")


@pytest.mark.parametrize(
    "name", ["lookup_read", "lookup_read_meta", "lookup_write_meta", "nodes", "lookup_unknown_read"]
)
def test_youzans_answers_are_told_from_plain_ones(name: str) -> None:
    assert is_youzan_answer(captured(name))
    assert not is_youzan_answer(PLAIN)
    assert not is_youzan_answer(None)
    assert not is_youzan_answer({"producers": [None, {"version": 5}]})


@pytest.mark.parametrize("name", ["lookup_read", "lookup_unknown_read"])
def test_a_reader_asks_for_more_only_one_that_shows_to_be_youzans(name: str) -> None:
    dialect = AutoDialect()
    assert dialect.lookup_path("t", "read") == "/lookup?topic=t"
    assert dialect.fuller_path("t", PLAIN) is None
    assert dialect.fuller_path("t", captured(name)) == "/lookup?topic=t&access=r&metainfo=true"


def test_a_reader_stays_plain_on_plain_answers_and_changes_with_youzans() -> None:
    dialect = AutoDialect()
    assert dialect.parse_lookup("t", "read", PLAIN).endpoints == (AT,)
    assert (dialect.found, dialect.subscribe("t", "c", AT)) == ("nsq", (b"SUB t c\n",))
    endpoints = dialect.parse_lookup("gplain", "read", captured("lookup_read_meta")).endpoints
    assert [e.partition for e in endpoints] == [0, 1]
    assert dialect.found == "youzan"
    assert dialect.subscribe("gplain", "c", endpoints[1]) == (b"SUB gplain c 1\n",)


def test_a_writer_asks_for_nodes_until_it_knows_and_then_for_topics() -> None:
    dialect = AutoDialect()
    assert dialect.lookup_path("", "write") == "/nodes"
    assert dialect.parse_lookup("", "write", PLAIN).endpoints == (AT,)
    assert not dialect.needs_route("t")
    assert dialect.parse_lookup("", "write", captured("nodes")).endpoints == ()
    assert dialect.needs_route("t")
    assert dialect.lookup_path("t", "write").startswith("/lookup?topic=t&access=w")


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
