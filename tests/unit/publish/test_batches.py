"""What goes beside each body of a batch, and where a batch is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.dialect import Dialect, Endpoint, PublishRequest
from gnsq_lite.errors import OptionError
from gnsq_lite.publish.batches import check_one_each, split_batch
from gnsq_lite.youzan.dialect import YouzanDialect

AT = Endpoint("a", 1, 3)


def batch_of(dialect: Dialect, bodies: list[bytes], headers: Any, trace_ids: Any) -> PublishRequest:
    batch = PublishRequest(topic="t", bodies=bodies, batch=True, headers=headers, trace_ids=trace_ids)
    check_one_each(batch)
    return dialect.check(batch, 1_000_000)


def sent(dialect: YouzanDialect, batch: PublishRequest) -> bytes:
    return dialect.encode(batch, AT, None)


@pytest.mark.rule("WIRE-8")
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1), st.booleans(), st.integers(80, 300))
def test_each_part_fits_and_together_they_are_the_batch(bodies: list[bytes], headed: bool, most: int) -> None:
    dialect = YouzanDialect()
    headers: Any = [{"n": at} if at % 2 else None for at in range(len(bodies))]
    batch = batch_of(dialect, bodies, *((headers, None) if headed else (None, list(range(len(bodies))))))
    parts = list(split_batch(batch, most))
    assert [body for part in parts for body in part.bodies] == bodies
    told = [one for part in parts for one in (part.encoded_headers or part.trace_ids or ())]
    assert told == list(batch.encoded_headers or batch.trace_ids or ())
    for part in parts:
        verb, _, rest = sent(dialect, part).partition(b" t 3\n")
        assert verb == (b"MPUB_EXT" if headed else b"MPUB_TRACE")
        assert int.from_bytes(rest[:4], "big") == len(rest) - 4
        assert len(rest) - 4 <= most or len(part.bodies) == 1


@pytest.mark.rule("YZ-15")
def test_each_body_has_its_own_headers_and_trace_id() -> None:
    batch = batch_of(YouzanDialect(), [b"x", b"y", b"z"], [{"a": 1}, None, {}], [5, 6, 7])
    assert batch.encoded_headers == [b'{"a":1,"##trace_id":"5"}', b'{"##trace_id":"6"}', b'{"##trace_id":"7"}']
    assert batch_of(YouzanDialect(), [b"x", b"y"], [None, {}], None).encoded_headers == [b"", b"{}"]


@pytest.mark.rule("YZ-9")
def test_ids_of_a_writer_that_traces_are_drawn_once_for_each_message() -> None:
    dialect = YouzanDialect(trace=True, clock=SYSTEM_CLOCK)
    batch = batch_of(dialect, [b"x", b"y"], [None, {"a": 1}], None)
    assert batch.encoded_headers is not None
    assert batch.encoded_headers[0].startswith(b'{"##trace_id":')
    assert batch.encoded_headers[1].startswith(b'{"a":1,"##trace_id":')
    assert sent(dialect, batch) == sent(dialect, batch)


@pytest.mark.rule("YZ-15")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"headers": [{}]}, "1 items for 2 bodies"),
        ({"headers": {"a": 1}}, "one item for each body"),
        ({"trace_ids": [1, 2, 3]}, "3 items for 2 bodies"),
        ({"trace_ids": 5}, "one item for each body"),
        ({"trace_ids": [1, -1]}, "between 0 and"),
        ({"headers": [{}, {"##x": 1}]}, "reserved for the server"),
        ({"headers": [{}, "text"]}, "mapping"),
        ({"headers": [{}, {"a": "x" * 65499}]}, "65506"),
    ],
)
def test_what_cannot_be_sent_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        batch_of(YouzanDialect(), [b"x", b"y"], options.get("headers"), options.get("trace_ids"))


def test_plain_nsq_takes_neither_headers_nor_trace_ids() -> None:
    for options in ([[None], None], [None, [1]]):
        with pytest.raises(OptionError, match="needs Youzan's NSQ"):
            batch_of(Dialect(), [b"x"], *options)
