"""Typed bodies: codecs, and handlers with ``decode=``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from gnsq_lite import Message, Worker
from gnsq_lite.contrib.bodies import JSON, Codec, msgspec_json, protobuf, pydantic_json
from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.worker import Middleware
from tests.programs import wait_for
from tests.servers import ServerHandle


@dataclass
class Order:
    number: int
    name: str


def test_json_keeps_texts_and_is_compact() -> None:
    body = JSON.encode({"name": "Zoë", "numbers": [1, 2]})
    assert body == '{"name":"Zoë","numbers":[1,2]}'.encode()
    assert JSON(body) == {"name": "Zoë", "numbers": [1, 2]}


@pytest.mark.parametrize(("module", "make"), [("msgspec", msgspec_json), ("pydantic", pydantic_json)])
def test_checked_json_decodes_to_a_class_and_refuses_other_bodies(module: str, make: Any) -> None:
    pytest.importorskip(module)
    codec: Codec[Order] = make(Order)
    body = codec.encode(Order(7, "Zoë"))
    assert codec(body) == Order(7, "Zoë")
    for wrong in (b"", b"{}", b'{"number": "x", "name": "y"}', b"\xff"):
        with pytest.raises(ValueError):
            codec(wrong)


def test_protocol_buffers_decode_to_the_generated_class() -> None:
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    codec = protobuf(wrappers.StringValue)
    assert codec(codec.encode(wrappers.StringValue(value="x"))).value == "x"
    with pytest.raises(TypeError, match="is not a generated class"):
        protobuf(int)


@pytest.mark.parametrize(
    ("name", "make"),
    [("msgspec.json", msgspec_json), ("pydantic", pydantic_json), ("google.protobuf.message", protobuf)],
)
def test_a_missing_package_is_named(name: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="pip install"):
        make(Order)


def test_a_handler_gets_the_value_and_a_body_that_does_not_decode_is_given_up_at_once(
    broker: ServerHandle, topic: str
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b'{"number": 7}', b"{")
    handled: list[tuple[int, bytes]] = []
    given_up: list[tuple[bytes, int, str]] = []
    failures: list[str] = []

    class Noting(Middleware[Message]):
        def failed(self, message: Message, error: BaseException) -> None:
            failures.append(type(error).__name__)

    worker = Worker(
        nsqd_tcp_addresses=broker.tcp_address,
        middleware=[Noting()],
        on_give_up=lambda message: given_up.append((message.body, message.attempts, str(sys.exc_info()[1]))),
    )

    @worker.handler(topic, "ch", decode=json.loads)
    def handle(order: Any, message: Message) -> None:
        handled.append((order["number"], message.body))

    worker.start()
    try:
        wait_for(lambda: worker.stats()[0].finished == 2)
    finally:
        worker.close()
    assert handled == [(7, b'{"number": 7}')]
    ((body, attempts, why),) = given_up
    assert (body, attempts) == (b"{", 1)
    assert why.startswith("cannot decode the body: JSONDecodeError: ")
    assert failures == ["GiveUp"]


def test_what_cannot_decode_is_refused() -> None:
    words: Any = "json"
    with pytest.raises(OptionError, match="must be a function of bytes"):
        Worker().handler("t", "ch", decode=words)(print)
    many: Any = {"decode": json.loads, "batch_size": 10}
    with pytest.raises(OptionError, match="cannot be combined with batch_size"):
        Worker().handler("t", "ch", **many)(print)
