"""MPUB payloads from Arrow, and what is refused before a byte is sent."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.errors import (
    BadTopicError,
    DpubFailedError,
    MpubFailedError,
    NotSent,
    NSQError,
    OptionError,
    OutcomeUnknown,
)
from gnsq_lite.recording.files import Files
from gnsq_lite.spark import publisher, sinktask
from gnsq_lite.spark.mpub import Bodies, Payload, bodies_of, payloads
from gnsq_lite.spark.options import SinkOptions, parse
from gnsq_lite.spark.progress import NOTHING, Done, Marker, TaskKey, remove_markers
from gnsq_lite.spark.publisher import OtherRows, Sink, shared_writer
from gnsq_lite.spark.rows import BadRows
from gnsq_lite.spark.sink import batched, check_columns
from tests.profiles import load
from tests.recording.fakes import Crash, CrashingFiles

load()


def parsed(data: bytes) -> list[bytes]:
    """Read an MPUB body by the protocol's own layout, with no code of the library."""
    size, count = struct.unpack_from(">II", data)
    assert size == len(data) - 4
    at, found = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", data, at)
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(data)
    return found


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    st.integers(1, 10),
    st.integers(50, 200),
    st.integers(0, 3),
)
def test_payloads_hold_all_bodies_in_order_within_the_limits(
    bodies: list[bytes], most: int, size: int, cut: int
) -> None:
    column = pa.array([b"before"] * cut + bodies, pa.binary()).slice(cut)
    found = list(payloads("t", column, most, size))
    assert [body for payload in found for body in parsed(payload.data)] == bodies
    assert all(0 < payload.count <= most and len(payload.data) - 4 <= max(size, 48) for payload in found)
    assert [body for payload in found for body in bodies_of(payload.data)] == bodies


def test_a_payload_is_read_as_messages_where_a_dialect_lays_them_out_otherwise() -> None:
    (payload,) = payloads("t", pa.array([b"1", b"22", b"333"]), 10, 100)
    bodies = Bodies(payload)
    assert (len(bodies), list(bodies), bodies[1], bodies[1:]) == (3, [b"1", b"22", b"333"], b"22", [b"22", b"333"])


class FakePublication:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def result(self, timeout: float | None = None) -> None:
        if self.error is not None:
            raise self.error


class FakeWriter:
    """Takes payloads; fails as told."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.sent: list[tuple[str, list[bytes]]] = []
        self.deferred: list[tuple[str, bytes, float]] = []

    def send(self, payload: Payload, timeout: float) -> Any:
        error = self.errors.pop(0) if self.errors else None
        if not isinstance(error, NotSent):
            self.sent.append((payload.topic, parsed(payload.data)))
        return FakePublication(error)

    def publish_nowait(self, topic: str, body: bytes, *, defer: float, timeout: float) -> Any:
        self.deferred.append((topic, body, defer))
        return FakePublication(self.errors.pop(0) if self.errors else None)


def sink(
    writer: FakeWriter, skip: Done = NOTHING, on_progress: Callable[[Done], None] | None = None, **more: str
) -> Sink:
    given = {"nsqdTCPAddresses": "n", "topic": "t", "mpubSize": "2", **more}
    options = parse(SinkOptions, {name: text for name, text in given.items() if text})
    return Sink(writer, options, skip=skip, on_progress=on_progress, sleep=lambda _: None)  # type: ignore[arg-type]


def table(*bodies: bytes, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), **columns})


def test_rows_are_published_in_order_in_mpubs() -> None:
    writer = FakeWriter()
    assert sink(writer).write([table(b"1", b"2", b"3"), table(b"4")]) == 4
    assert writer.sent == [("t", [b"1", b"2"]), ("t", [b"3"]), ("t", [b"4"])]


def test_a_topic_column_rules_and_neighbours_share_an_mpub() -> None:
    writer = FakeWriter()
    sink(writer).write([table(b"1", b"2", b"3", topic=["a", "a", None])])
    assert writer.sent == [("a", [b"1", b"2"]), ("t", [b"3"])]


def test_strings_are_published_as_utf8() -> None:
    writer = FakeWriter()
    sink(writer).write([pa.RecordBatch.from_pydict({"body": ["é"]})])
    assert writer.sent == [("t", ["é".encode()])]


def test_bodies_of_another_type_are_refused() -> None:
    with pytest.raises(OptionError, match="BINARY or STRING"):
        sink(FakeWriter()).write([pa.RecordBatch.from_pydict({"body": [1, 2]})])


BAD = {
    "null or empty body": ("1", None),
    "11 bytes; nsqd accepts at most 10": ("1", b"x" * 11),
    "topic name 'a b' is not valid": ("a b", b"1"),
    "topic is null": (None, b"1"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_row_raises_before_any_row_of_the_partition_is_sent(why: str) -> None:
    topic, body = BAD[why]
    writer = FakeWriter()
    last = table(b"2", body, topic=["a", topic])  # type: ignore[arg-type]
    with pytest.raises(BadRows, match=rf"refuse 1 of 2 rows, the first .*{why}.*onBadRow=skip or topic:NAME"):
        sink(writer, topic="", maxMessageBytes="10").write([*[table(b"1", topic=["a"])] * 100, last])
    assert writer.sent == []


def test_a_partition_larger_than_the_first_check_is_sent_up_to_the_bad_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "CHECKED_BYTES", 3)
    writer = FakeWriter()
    with pytest.raises(BadRows):
        sink(writer).write([table(b"1", b"2"), table(b"3", b"4"), table(b"5"), table(b"")])
    assert [body for _, bodies in writer.sent for body in bodies] == [b"1", b"2", b"3", b"4", b"5"]


def test_bad_rows_are_skipped() -> None:
    writer = FakeWriter()
    rows = table(b"1", b"", b"2", b"x" * 11, b"3", topic=["a", "a", "a", "a", "a b"])
    assert sink(writer, onBadRow="skip", maxMessageBytes="10").write([rows, table(b"", topic=["a"])]) == 2
    assert writer.sent == [("a", [b"1", b"2"])]


def test_bad_rows_are_published_as_records_with_the_reason_and_the_start_of_the_body() -> None:
    writer = FakeWriter()
    rows = table(b"1", None, b"x" * 3000, b"3", topic=["a", "a", "a", "a b"])  # type: ignore[arg-type]
    assert sink(writer, onBadRow="topic:bad", maxMessageBytes="2048").write([rows]) == 4
    assert writer.sent[-1] == ("a", [b"1"])
    records = [body for topic, bodies in writer.sent if topic == "bad" for body in bodies]
    assert all(len(record) <= 2048 for record in records)
    empty, large, named = map(json.loads, records)
    assert (empty["body"], empty["bytes"], empty["topic"]) == (None, 0, "a")
    assert "3000 bytes" in large["error"]
    assert base64.b64decode(large["body"]) == b"x" * 768
    assert base64.b64decode(named["body"]) == b"3"


@pytest.mark.parametrize(("text", "why"), [("ignore", "topic:NAME"), ("topic:a b", "' ' at position 1")])
def test_an_invalid_on_bad_row_is_refused(text: str, why: str) -> None:
    with pytest.raises(NSQError, match=why):
        parse(SinkOptions, {"nsqdTCPAddresses": "n", "onBadRow": text})


def test_a_defer_column_publishes_deferred() -> None:
    writer = FakeWriter()
    assert sink(writer).write([table(b"1", b"2", defer=[1.5, None])]) == 2
    assert writer.deferred == [("t", b"1", 1.5), ("t", b"2", 0.0)]


@pytest.mark.parametrize(
    "error", [NotSent("down"), OutcomeUnknown("lost"), MpubFailedError("E_MPUB_FAILED", "exiting")]
)
def test_what_may_help_is_sent_again(error: BaseException) -> None:
    writer = FakeWriter(error, None)
    assert sink(writer).write([table(b"1")]) == 1
    assert writer.sent[-1] == ("t", [b"1"])


@pytest.mark.parametrize(
    "error", [NotSent("down"), OutcomeUnknown("lost"), DpubFailedError("E_DPUB_FAILED", "exiting")]
)
def test_a_deferred_row_is_sent_again_where_another_row_is(error: NSQError) -> None:
    writer = FakeWriter(None, error, error, None)
    assert sink(writer, maxRetries="2").write([table(b"1", b"2", defer=[1.5, 2.5])]) == 2
    assert writer.deferred == [("t", b"1", 1.5)] + [("t", b"2", 2.5)] * 3
    writer = FakeWriter(error, error, None)
    with pytest.raises(type(error)):
        sink(writer, maxRetries="1").write([table(b"1", defer=[1.5])])
    assert len(writer.deferred) == 2


def test_what_nsqd_refuses_for_good_is_not_sent_again() -> None:
    writer = FakeWriter(BadTopicError("E_BAD_TOPIC", "t"))
    with pytest.raises(BadTopicError):
        sink(writer).write([table(b"1")])
    assert len(writer.sent) == 1


def test_after_all_retries_the_error_is_the_tasks() -> None:
    writer = FakeWriter(*[OutcomeUnknown("lost")] * 9)
    with pytest.raises(OutcomeUnknown):
        sink(writer, maxRetries="2").write([table(b"1")])
    assert len(writer.sent) == 3


def noted_by(*batches: pa.RecordBatch, **more: str) -> list[Done]:
    """Return what a task of *batches* notes of its progress."""
    noted: list[Done] = []
    sink(FakeWriter(), on_progress=noted.append, pipeline="1", **more).write(batches)
    return noted


def test_sinks_of_other_limits_have_writers_of_their_own() -> None:
    small, large, more = (
        parse(SinkOptions, {"nsqdTCPAddresses": "n", "topic": topic, "maxMessageBytes": size})
        for topic, size in (("t", "1m"), ("t", "4m"), ("u", "4m"))
    )
    assert shared_writer(small) is not shared_writer(large)
    assert shared_writer(large) is shared_writer(more)


def test_a_repeated_task_goes_on_behind_its_marker() -> None:
    noted = noted_by(table(b"1", b"2", b"3", b"4", b"5"), mpubSize="1")
    assert [done.rows for done in noted] == [1, 2, 3, 4, 5, 5]
    for done in (NOTHING, *noted):
        again = FakeWriter()
        sink(again, skip=done).write([table(b"1", b"2", b"3"), table(b"4", b"5")])
        assert [body for _, bodies in again.sent for body in bodies] == [b"1", b"2", b"3", b"4", b"5"][done.rows :]


@pytest.mark.parametrize("bodies", [[b"1", b"2"], [b"1", b"2", b"4", b"3"], [b"12", b"", b"3", b"4"], []])
def test_a_task_of_other_rows_than_its_marker_counts_passes_over_none_unseen(bodies: list[bytes]) -> None:
    done = noted_by(table(b"1", b"2", b"3", b"4"), mpubSize="1")[2]
    again = FakeWriter()
    with pytest.raises(OtherRows, match=r"begin with the 3 rows .* the marker is removed"):
        sink(again, skip=done, onBadRow="skip").write([table(*bodies)])
    assert again.sent == []


def test_a_marker_counts_large_rows_before_the_end_of_a_batch_with_a_bad_row() -> None:
    rows = table(b"", *[b"x" * 1_000_000] * 19)
    noted = [done.rows for done in noted_by(rows, onBadRow="skip", mpubSize="1")]
    assert 5 <= noted[0] <= 9, "about 8 MiB"
    assert noted[-1] == 20


def test_rows_of_any_kind_are_known_again() -> None:
    rows = table(b"1", b"", b"2", b"3", b"4", topic=["a", "a", "a", "b", "b"], defer=[0.0, 0.0, 0.0, 1.0, 1.0])
    (*_, last) = noted_by(rows, onBadRow="skip")
    again = FakeWriter()
    sink(again, skip=last, onBadRow="skip").write([rows, table(b"5", topic=["a"], defer=[0.0])])
    assert (again.sent, again.deferred) == ([("a", [b"5"])], [])


def test_progress_never_passes_what_nsqd_has_taken() -> None:
    noted: list[Done] = []
    writer = FakeWriter(None, OutcomeUnknown("lost"))
    with pytest.raises(OutcomeUnknown):
        sink(writer, on_progress=noted.append, pipeline="1", maxRetries="0").write([table(b"1", b"2", b"3")])
    assert [done.rows for done in noted] == [2]


def test_skipped_null_rows_count_as_progress() -> None:
    assert noted_by(table(b"1", b"", b"", b""), onBadRow="skip")[-1].rows == 4


def test_a_marker_belongs_to_one_task_of_one_batch(tmp_path: Path) -> None:
    key = TaskKey("q-1", "7", 0)
    marker = Marker(tmp_path, key)
    assert marker.read() == NOTHING
    marker.write(Done(41, 7))
    assert Marker(tmp_path, key).read() == Done(41, 7)
    assert Marker(tmp_path, TaskKey("q-1", "8", 0)).read() == NOTHING
    remove_markers(tmp_path, "q-1", 7)
    assert marker.read() == Done(41, 7)
    remove_markers(tmp_path, "q-1", 8)
    assert marker.read() == NOTHING


def test_a_marker_of_other_rows_is_forgotten_so_that_the_next_attempt_publishes_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, writer = TaskKey("q", "7", 0), FakeWriter()
    monkeypatch.setattr(sinktask, "current_task", lambda write: key)
    monkeypatch.setattr(sinktask, "shared_writer", lambda options: writer)
    options = parse(SinkOptions, {"nsqdTCPAddresses": "n", "topic": "t", "markerDir": str(tmp_path)})
    Marker(tmp_path, key).write(Done(3, 7))
    with pytest.raises(OtherRows):
        sinktask.publish(options, [table(b"1", b"2", b"3", b"4")])
    assert sinktask.publish(options, [table(b"1", b"2", b"3", b"4")]).rows == 4
    assert writer.sent == [("t", [b"1", b"2", b"3", b"4"])]


def test_a_marker_without_a_checksum_counts_nothing(tmp_path: Path) -> None:
    key = TaskKey("q", "7", 0)
    (tmp_path / key.file_name).write_text('{"rows": 3}')
    assert Marker(tmp_path, key).read() == NOTHING


class OtherAttempt(Files):
    """Another attempt of the task notes its progress while this one does."""

    def __init__(self, other: Marker) -> None:
        self._others = [other]

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self._others:
            self._others.pop().write(Done(2, 2))


def test_two_attempts_of_a_task_may_note_at_once(tmp_path: Path) -> None:
    key = TaskKey("q", "7", 0)
    Marker(tmp_path, key, OtherAttempt(Marker(tmp_path, key))).write(Done(1, 1))
    assert Marker(tmp_path, key).read() in (Done(1, 1), Done(2, 2))


def test_what_a_killed_attempt_left_of_a_marker_goes_with_the_marker(tmp_path: Path) -> None:
    key = TaskKey("q", "7", 0)
    with pytest.raises(Crash):
        Marker(tmp_path, key, CrashingFiles(2)).write(Done(1, 1))
    assert list(tmp_path.iterdir())
    remove_markers(tmp_path, "q", 8)
    assert not list(tmp_path.iterdir())


def test_columns_the_sink_does_not_know_are_refused_before_anything_is_sent() -> None:
    options = parse(SinkOptions, {"nsqdTCPAddresses": "n", "topic": "t"})
    check_columns([("body", "string"), ("defer", "double"), ("topic", "string")], options, False)
    for fields, why in [
        ([("value", "string")], "need a column 'body'"),
        ([("body", "binary"), ("key", "string")], "has only the columns"),
        ([("body", "int")], "must be 'binary' or 'string'"),
    ]:
        with pytest.raises(OptionError, match=why):
            check_columns(fields, options, False)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        check_columns([("body", "string")], options, True)
    with pytest.raises(OptionError, match="option topic"):
        check_columns([("body", "string")], parse(SinkOptions, {"nsqdTCPAddresses": "n"}), False)


def test_rows_from_old_pyspark_become_batches() -> None:
    found = list(batched(iter([("a", None), (b"b", "t2"), (None, "t")]), ["body", "topic"], size=2))
    assert [batch.to_pydict() for batch in found] == [
        {"body": [b"a", b"b"], "topic": [None, "t2"]},
        {"body": [None], "topic": ["t"]},
    ]
