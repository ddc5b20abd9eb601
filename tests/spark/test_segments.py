"""Segment files: what is torn is cut off, what is damaged is noticed, tasks are a pure function of the segments."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.errors import OptionError
from gnsq_lite.recording.schema import arrow_schema, check_schema, ddl, id_text, to_batch
from gnsq_lite.spark import segments
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from tests.spark.fakes import FakeMessage


def batch(first: int, count: int) -> pa.RecordBatch:
    return to_batch([FakeMessage(number, b"body %d" % number) for number in range(first, first + count)])


def file_of(*batches: pa.RecordBatch) -> bytes:
    return segments.head(batches[0].schema) + b"".join(segments.record(one) for one in batches)


def bodies(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [body for one in batches for body in one.column("body").to_pylist()]


def test_the_arrow_types_are_exactly_sparks() -> None:
    types = {field.name: str(field.type) for field in batch(0, 1).schema}
    assert types["timestamp"] == "timestamp[us, tz=UTC]"
    assert types["body"] == "binary"
    assert types["attempts"] == "int32"
    assert batch(0, 1).schema.equals(arrow_schema())


def test_a_publish_time_is_cut_to_microseconds() -> None:
    one = to_batch([FakeMessage(0, timestamp_ns=1_700_000_000_123_456_999)])
    assert one.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456]


def test_a_binary_id_is_shown_as_hex_and_a_text_id_as_it_is() -> None:
    assert id_text(b"0123456789abcdef") == "0123456789abcdef"
    assert id_text(bytes(15) + b"\x0a") == "00" * 15 + "0a"


def test_youzans_columns_are_there_on_request() -> None:
    message = FakeMessage(1, partition=3)
    message.internal_id, message.trace_id, message.headers = 5, 2**64 - 1, {"k": "v"}
    row = to_batch([message], include_youzan=True).to_pylist()[0]
    assert (row["partition"], row["internalId"], row["traceId"], row["ext"]) == (3, 5, -1, '{"k": "v"}')
    assert ddl(True).endswith("partition INT, internalId BIGINT, traceId BIGINT, ext STRING")


def test_another_schema_is_refused_with_the_right_one() -> None:
    check_schema([(name, kind.lower()) for name, kind in (pair.split() for pair in ddl().split(", "))])
    with pytest.raises(OptionError, match=r"leave \.schema\(\) away.*body BINARY"):
        check_schema([("body", "binary")])


def test_rows_come_back_as_they_were_written() -> None:
    found = segments.scan(pa.py_buffer(file_of(batch(0, 3), batch(3, 2))))
    assert (found.rows, bodies(found.batches)) == (5, [b"body %d" % n for n in range(5)])


def test_every_torn_tail_gives_the_whole_records_before_it() -> None:
    whole = [batch(0, 3), batch(3, 2)]
    data = file_of(*whole)
    first = len(segments.head(whole[0].schema)) + len(segments.record(whole[0]))
    for cut in range(0, len(data) + 1, 7):
        found = segments.scan(pa.py_buffer(data[:cut]))
        assert found.rows == (5 if cut == len(data) else 3 if cut >= first else 0), cut
        assert found.size <= cut
        assert not segments.has_record(pa.py_buffer(data[:cut]), found.size), "no damage"


def test_a_tail_of_zeros_is_no_row() -> None:
    """A file system may extend a file before its data arrives; after a power cut the tail reads as zeros."""
    data = file_of(batch(0, 3))
    torn = file_of(batch(0, 3), batch(3, 2))
    found = segments.scan(pa.py_buffer(data + bytes(len(torn) - len(data))))
    assert (found.rows, found.size) == (3, len(data))
    half_written = torn[: len(data) + 64] + bytes(len(torn) - len(data) - 64)
    assert segments.scan(pa.py_buffer(half_written)).rows == 3
    assert not segments.has_record(pa.py_buffer(half_written), len(data))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_byte_gives_a_prefix_of_the_rows(data: st.DataObject) -> None:
    original = file_of(batch(0, 2), batch(2, 2), batch(4, 1))
    at = data.draw(st.integers(0, len(original) - 1))
    damaged = bytearray(original)
    damaged[at] ^= data.draw(st.integers(1, 255))
    found = segments.scan(pa.py_buffer(bytes(damaged)))
    assert bodies(found.batches) == [b"body %d" % n for n in range(5)][: found.rows]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_scanning_is_total(noise: bytes) -> None:
    assert segments.scan(pa.py_buffer(noise)).rows == 0
    assert segments.scan(pa.py_buffer(segments.MAGIC + noise)).rows == 0


def test_a_sealed_segment_with_rows_missing_is_an_error(tmp_path: Path) -> None:
    data = file_of(batch(0, 3))
    segment = Segment(1, -1, 3, len(data))
    path = tmp_path / segment.name
    path.write_bytes(data)
    assert bodies(segments.read_file(path, segment)) == [b"body 0", b"body 1", b"body 2"]
    path.write_bytes(data[:-64])
    with pytest.raises(SegmentDamaged, match="0 of 3 rows"):
        segments.read_file(path, segment)


def test_a_name_tells_number_partition_rows_and_bytes() -> None:
    segment = Segment(57, -1, 3, 4096)
    assert segments.parse_name(segment.name) == segment
    assert segments.parse_name(Segment(57, 4, 3, 4096).name) == Segment(57, 4, 3, 4096)
    assert segments.parse_name("seg-1.seg") is None


def test_small_batches_are_joined_and_their_order_kept() -> None:
    small = [batch(n, 1) for n in range(25)]
    joined = list(segments.coalesced(small, arrow_schema()))
    assert len(joined) == 1
    assert bodies(joined) == [b"body %d" % n for n in range(25)]


def test_large_rows_are_not_joined_into_what_spark_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BATCH_BYTES", 100_000)
    parts = [segments.record(to_batch([FakeMessage(n, bytes(40_000))])) for n in range(7)]
    large = segments.scan(pa.py_buffer(segments.head(arrow_schema()) + b"".join(parts))).batches
    assert [joined.num_rows for joined in segments.coalesced(iter(large), arrow_schema())] == [3, 3, 1]


def test_a_spool_from_before_include_youzan_reads_with_nulls() -> None:
    wide = segments.conform(batch(0, 2), arrow_schema(True))
    assert wide.schema.equals(arrow_schema(True))
    assert wide.column("traceId").to_pylist() == [None, None]


@pytest.mark.rule("PIPE-3")
def test_tasks_depend_on_nothing_but_the_segments() -> None:
    some = [Segment(n, -1, 10, 100) for n in range(1, 8)]
    groups = segments.grouped(some, 25, 10_000)
    assert groups == segments.grouped(list(some), 25, 10_000)
    assert [[s.number for s in group] for group in groups] == [[1, 2], [3, 4], [5, 6], [7]]
    assert segments.grouped([Segment(1, -1, 99, 10**9)], 25, 100) == [[Segment(1, -1, 99, 10**9)]]


@pytest.mark.rule("PIPE-5")
def test_a_topic_partition_is_a_task_of_its_own_and_in_order() -> None:
    some = [Segment(n, n % 2, 10, 100) for n in range(1, 7)]
    groups = segments.grouped(some, 10, 100)
    assert [[s.number for s in group] for group in groups] == [[1, 3, 5], [2, 4, 6]]
