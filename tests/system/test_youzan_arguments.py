"""Arguments that Youzan's NSQ refuses: the Writer raises at once, whether or not a server can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_lite import Reader, Writer, errors
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.youzan_broker import YouzanBroker

MOST = 1024 * 1024  # nsqd's --max-msg-size


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"a": value}


def header_bytes(size: int) -> dict[str, str]:
    return {"a": "x" * (size - len('{"a":""}'))}


REFUSED: dict[str, dict[str, Any]] = {
    "a key and a partition": {"key": b"k", "partition": 0},
    "a key that is no text": {"key": 5},
    "a negative partition": {"partition": -1},
    "a partition above 254": {"partition": 255},
    "a partition in text": {"partition": "0"},
    "a partition that is a bool": {"partition": True},
    "a negative trace id": {"trace_id": -1},
    "a trace id above 64 bits": {"trace_id": 2**64},
    "a delay": {"defer": 1.0},
    "headers that are no mapping": {"headers": [("a", 1)]},
    "a header whose name is no text": {"headers": {1: "a"}},
    "a header that is no JSON": {"headers": {"a": b"x"}},
    "a header that is no number": {"headers": {"a": float("nan")}},
    "a header of the server": {"headers": {"##other": 1}},
    "a bad tag": {"headers": {"##client_dispatch_tag": "a b"}},
    "a trace id in a header": {"headers": {"##trace_id": "5"}},
    "headers of 65,507 bytes": {"headers": header_bytes(65_507)},
    "headers with 301 levels": {"headers": nested(301)},
}


@pytest.fixture(params=["reachable", "unreachable"])
def lookupd(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "unreachable":
        yield "127.0.0.1:1"
        return
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", partitions=2, ext=True)
        yield broker.lookupd_http_address or ""


def refused_at_once(error: type[errors.NSQError], publish: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(error):
        publish()
    assert time.monotonic() - began < 12.0  # publish_timeout is 15 s


@pytest.mark.rule("ERR-2")
@pytest.mark.rule("YZ-15")
def test_an_argument_that_youzans_nsq_refuses_raises_at_once(lookupd: str) -> None:
    with Writer(lookupd_http_addresses=lookupd, dialect="youzan") as writer:
        for _ in range(2):  # the second time the Writer has started
            for options in REFUSED.values():
                for publish in (writer.publish, writer.publish_nowait):
                    refused_at_once(errors.OptionError, lambda: publish("t", b"x", **options))  # noqa: B023 - called here
        for batch in ({"key": b"k", "partition": 0}, {"partition": 255}, {"headers": [header_bytes(65_507)]}):
            refused_at_once(errors.OptionError, lambda: writer.multipublish("t", [b"x"], **batch))  # noqa: B023
        assert writer.stats(5.0).pending == 0


@pytest.mark.rule("WIRE-8")
def test_a_message_that_is_too_large_with_its_headers_or_trace_id_raises_at_once(lookupd: str) -> None:
    headers, header_size = {"a": 1}, len('{"a":1}') + 2 + 1
    with Writer(lookupd_http_addresses=lookupd, dialect="youzan", publish_timeout=1.0) as writer:
        for size, options in (
            (MOST + 1, {}),
            (MOST - 7, {"trace_id": 1}),
            (MOST - header_size + 1, {"headers": headers}),
        ):
            refused_at_once(errors.MessageTooLarge, lambda: writer.publish("t", b"x" * size, **options))  # noqa: B023
        for size, batch in (
            (MOST + 1, {}),
            (MOST - 7, {"trace_ids": [1, 2]}),
            (MOST - header_size + 1, {"headers": [None, headers]}),
        ):
            bodies = [b"small", b"x" * size]
            refused_at_once(errors.MessageTooLarge, lambda: writer.multipublish("t", bodies, **batch))  # noqa: B023
    with Writer(lookupd_http_addresses=lookupd, dialect="youzan", trace=True) as writer:
        refused_at_once(errors.MessageTooLarge, lambda: writer.publish("t", b"x" * (MOST - 7)))
        refused_at_once(errors.MessageTooLarge, lambda: writer.multipublish("t", [b"x" * (MOST - 7)]))


@pytest.mark.rule("YZ-5")
def test_a_key_that_the_java_mapping_cannot_read_raises_at_once(lookupd: str) -> None:
    with Writer(lookupd_http_addresses=lookupd, dialect=YouzanDialect(key_mapping="java")) as writer:
        refused_at_once(errors.OptionError, lambda: writer.publish("t", b"x", key=b"\xff"))


@pytest.mark.rule("YZ-15")
def test_the_largest_headers_and_messages_are_sent() -> None:
    with YouzanBroker(nsqds=1) as broker:
        broker.youzan.create_topic("t", ext=True)
        with Writer(lookupd_http_addresses=broker.lookupd_http_address, dialect="youzan") as writer:
            writer.publish("t", b"x", headers=header_bytes(65_506))
            writer.publish("t", b"x", headers={**nested(300), "b": '"[[\\"' * 200})
            writer.publish("t", b"x" * (MOST - 10), headers={"a": 1})
            writer.publish("t", b"x" * (MOST - 8), trace_id=1)
        assert len(broker.youzan.bodies("t", 0)) == 4


def test_a_writer_refuses_trace_beside_a_dialect_object() -> None:
    with pytest.raises(errors.OptionError, match="YouzanDialect"):
        Writer("127.0.0.1:4150", dialect=YouzanDialect(), trace=True)


@pytest.mark.rule("YZ-3")
@pytest.mark.rule("YZ-6")
@pytest.mark.parametrize("options", [{"partitions": [0]}, {"ordered": True}])
def test_a_reader_refuses_an_option_beside_a_dialect_object(options: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError, match="YouzanDialect"):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", dialect=YouzanDialect(), **options)
