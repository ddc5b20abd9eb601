"""JSON bodies as columns, and dead letters in a topic, in a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import OptionError
from gnsq_lite.spark import parse_json, with_dead_letters
from tests.servers import ServerHandle
from tests.spark.conftest import spark_session
from tests.spark.streams import Feed, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SCHEMA = "user STRING, clicks INT"


def test_what_does_not_parse_goes_to_a_topic_and_the_rest_on(nsqd: ServerHandle, topic: str, tmp_path: Path) -> None:
    spark = spark_session("local[2]")
    feed = Feed(nsqd, topic, tmp_path)
    bad = [b"{", b"\xff\xfe", b'{"user": "x", "clicks": "many"}']
    good = [b'{"user": "u%d", "clicks": %d}' % (n % 3, n) for n in range(30)] + [b"{}"]
    with Writer(nsqd.tcp_address) as writer:
        writer.multipublish(topic, [*good, *bad])
    kept: dict[int, list[Any]] = {}

    def store(rows: Any, batch_id: int) -> None:
        assert rows.columns[-2:] == ["user", "clicks"]
        kept[batch_id] = [(row.user, row.clicks) for row in rows.collect()]

    sink = {"topic": f"{topic}-dead", "nsqdTCPAddresses": nsqd.tcp_address}
    parsed = parse_json(spark.readStream.format("nsq").options(**feed.options()).load(), SCHEMA)
    with pytest.raises(OptionError, match="user already"):
        parse_json(parsed, "user STRING")
    with pytest.raises(OptionError, match="dead letters"):
        with_dead_letters(store, {"nsqdTCPAddresses": "n"})
    writing = parsed.writeStream.foreachBatch(with_dead_letters(store, sink)).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination(240)
    assert query.exception() is None
    rows = [row for rows in kept.values() for row in rows]
    assert sorted(rows, key=str) == sorted([*((f"u{n % 3}", n) for n in range(30)), (None, None)], key=str)
    dead: list[bytes] = []
    with Reader(f"{topic}-dead", "look", lambda m: dead.append(m.body), nsqd_tcp_addresses=nsqd.tcp_address):
        until(lambda: len(dead) >= len(bad))
    assert sorted(dead) == sorted(bad)


DEEP = b"[" * 5000 + b"]" * 5000
#: Body -> its columns.
PARSED: dict[bytes, tuple[Any, ...]] = {
    b'{"user": "a", "clicks": 1}': ("a", 1),
    b' {"user": "a", "clicks": 1}\r\n': ("a", 1),
    b"{}": (None, None),
    b'{"user": null, "clicks": null}': (None, None),
    b'{"other": {"user": [1, {"clicks": 2}]}, "clicks": 3}': (None, 3),
    b'{"unparsed": "no", "gnsq_lite_end": 2}': (None, None),
    b'{"user": "' + "\u00fc\U0001f600".encode() + b'", "clicks": -2147483648}': ("\u00fc\U0001f600", -2147483648),
    b'{"' + b"k" * 40_000 + b'": 1, "clicks": 4}': (None, 4),
}
NOT_PARSED = [
    *(b"{", b"[", b'{"user": "a"', b'{"user": "a",}', b"{'user' 1}", b"plain", b"\x00", b"\xff\xfe"),
    *(b" ", b"\n\t ", b"null", b"5", b'"user"', b"true", b"[]", b'[{"user": "a"}]', b'[{"user": "a"}, {"user": "b"}]'),
    *(b'{"user": "a"}{"user": "b"}', b'{"user": "a"}\n{"user": "b"}', b'{"user": "a"} x', b'{"user": "a"}}'),
    *(b'{"user": "a"},{"user": "b"}', b'{"user": "a"}]', b'{"user": "\xff"}', '{"user": "a"}'.encode("utf-16")),
    *(b'{"clicks": "many"}', b'{"clicks": 1.5}', b'{"clicks": 99999999999}', b'{"clicks": 1e400}', b'{"clicks": {}}'),
    *(b'{"other": ' + DEEP + b"}", b'{"user": ' + DEEP + b"}", b'{"clicks": ' + b"9" * 5000 + b"}"),
]


def test_a_hostile_body_is_told_and_harms_no_other_row() -> None:
    spark = spark_session("local[2]")
    bodies = [*PARSED, *NOT_PARSED]
    frame = spark.createDataFrame([(n, bytearray(body)) for n, body in enumerate(bodies)], "n INT, body BINARY")
    found = {bodies[row.n]: row for row in parse_json(frame, SCHEMA).collect()}
    assert [body for body in PARSED if found[body].unparsed is not None] == []
    assert [body for body in NOT_PARSED if found[body].unparsed is None] == []
    assert {body: (found[body].user, found[body].clicks) for body in PARSED} == PARSED
    assert found[b"{"].unparsed == "{"
    with pytest.raises(OptionError, match="BODY already"):
        parse_json(frame, "BODY STRING")


@pytest.mark.parametrize(
    "schema",
    [
        "who STRUCT<id: INT, tags: ARRAY<STRING>>, at DATE",
        "who: struct<id: int, tags: array<string>>, at: date",
        "struct<who: struct<id: int, tags: array<string>>, at: date>",
    ],
)
def test_nested_values_are_columns_of_columns_in_each_form_of_a_schema(schema: str) -> None:
    spark = spark_session("local[2]")
    frame = spark.createDataFrame(
        [(bytearray(b'{"who": {"id": 7, "tags": ["a", null]}, "at": "2026-11-22"}'),)], "body BINARY"
    )
    (row,) = parse_json(frame, schema, unparsed="bad").collect()
    assert (row.who.id, row.who.tags, str(row["at"]), row.bad) == (7, ["a", None], "2026-11-22", None)
