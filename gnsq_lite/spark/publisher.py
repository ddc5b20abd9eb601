"""Publishes Arrow batches: MPUBs pipelined over a Writer that the worker process keeps between tasks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite import Writer
from gnsq_lite.errors import (
    InvalidBody,
    MpubFailedError,
    NotSent,
    NSQError,
    OptionError,
    OutcomeUnknown,
    PubFailedError,
)
from gnsq_lite.publish.publication import Publish
from gnsq_lite.spark.mpub import Bodies, Payload, checked_bodies, checksum, payloads
from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.progress import NOTHING, Done
from gnsq_lite.wire import commands
from gnsq_lite.wire.names import check_topic

#: Rows looked at in one go: their joined bodies are in memory once more.
_SLICE = 20_000
#: Errors that another attempt may mend: nsqd away, its answer lost, or nsqd on its way out or out of disk.
MAY_PASS = (NotSent, OutcomeUnknown, PubFailedError, MpubFailedError)
#: Seconds before a failed MPUB is sent again: first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class OtherRows(NSQError):
    """A task that Spark runs again does not begin with the rows its marker counts."""


class PayloadWriter(Writer):
    """A Writer that takes MPUB payloads as they are, without looking at each message again."""

    def send(self, payload: Payload, timeout: float) -> Publish:
        """Queue a payload and return its outcome to come.  Raises ClosedError."""
        core = self._core
        if core is None or core.closing:
            core = self._start(timeout)
        deadline = core.clock.now() + timeout
        publish = Publish(core.loop, payload.topic, Bodies(payload), timeout, deadline, batch=True)
        if core.router is None:
            publish.data = commands.multipublish_head(payload.topic) + payload.data
        core.carry(publish)
        return publish


_writers: dict[tuple[int, str, int, int], PayloadWriter] = {}
_writers_lock = threading.Lock()


def shared_writer(options: SinkOptions) -> PayloadWriter:
    """Return this process's Writer for *options*: connections outlive tasks, their heartbeats answered meanwhile."""
    given = repr(sorted(options.client_arguments().items(), key=str))
    key = (os.getpid(), given, options.max_message_bytes, options.mpub_max_bytes)
    with _writers_lock:
        writer = _writers.get(key)
        if writer is None:
            arguments = options.client_arguments()
            arguments.setdefault("reconnect_delay", 0.25)
            arguments.setdefault("max_reconnect_delay", 5.0)
            nsqds = arguments.pop("nsqd_tcp_addresses") or None
            writer = _writers[key] = PayloadWriter(
                nsqds,
                max_msg_size=options.max_message_bytes,
                max_body_size=max(options.mpub_max_bytes, options.max_message_bytes + 8),
                **arguments,
            )
        return writer


class Sink:
    """Publishes one task's rows, in order.  Those of *skip* are passed over: an earlier attempt published them."""

    def __init__(
        self,
        writer: PayloadWriter,
        options: SinkOptions,
        *,
        skip: Done = NOTHING,
        on_progress: Callable[[Done], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._writer, self._options, self._skip, self._sleep = writer, options, skip, sleep
        self._on_progress = on_progress
        self._window: deque[tuple[Payload, Publish, Done | None]] = deque()
        self._seen = self._settled = self._crc = 0
        self._due = time.monotonic()
        #: Rows that nsqd has taken, with those that were skipped; and rows that were sent again.
        self.done = skip
        self.published = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Publish all rows and return how many.

        Raises:
            InvalidBody, MessageTooLarge, InvalidName, OptionError: a row nsqd would refuse; nothing of its slice was
                sent, earlier slices of the task were.
            OtherRows: those to be passed over are not what the task begins with; nothing was sent.
            NSQError: nsqd refused, or could not be reached, after all retries.
        """
        for batch in batches:
            for at in range(0, batch.num_rows, _SLICE):
                self._write_slice(batch.slice(at, _SLICE))
        if self._seen < self._skip.rows:
            self._refuse()
        while self._window:
            self._settle()
        self._note()
        return self.published

    def _write_slice(self, batch: pa.RecordBatch) -> None:
        row = self._seen
        self._seen += batch.num_rows
        known = min(batch.num_rows, max(0, self._skip.rows - row))
        if known:
            self._pass_over(batch.slice(0, known))
            batch = batch.slice(known)
            row += known
        options = self._options
        checked = [
            (topic, part, *checked_bodies(part.column("body"), options.max_message_bytes, options.on_null_body))
            for topic, part in runs(batch, options.topic)
        ]
        for topic, part, bodies, mask in checked:
            row += part.num_rows
            self._write_run(topic, part, bodies, mask, row)

    def _pass_over(self, batch: pa.RecordBatch) -> None:
        bodies, _ = checked_bodies(batch.column("body"), sys.maxsize, "skip")
        self._crc = checksum(payloads("", bodies, sys.maxsize, sys.maxsize), self._crc)
        if self._seen >= self._skip.rows and self._crc != self._skip.crc:
            self._refuse()

    def _refuse(self) -> None:
        raise OtherRows(
            f"the task does not begin with the {self._skip.rows} rows that its marker in markerDir counts as published:"
            " the query, its options or its source changed, or a shuffle orders its rows; the marker is removed, and"
            " the task publishes all its rows when it runs again"
        )

    def _write_run(
        self, topic: str, batch: pa.RecordBatch, bodies: pa.Array, mask: pa.Array | None, row_after: int
    ) -> None:
        """Publish rows of one topic; *row_after* are the task's rows with the last of them."""
        options = self._options
        defers = batch.column("defer") if "defer" in batch.schema.names else None
        if defers is not None and pc.any(pc.greater(pc.fill_null(defers.cast(pa.float64()), 0.0), 0.0)).as_py():
            self._write_deferred(topic, bodies, defers if mask is None else defers.filter(mask))
            self._crc = self._checked(payloads(topic, bodies, sys.maxsize, sys.maxsize))
            self.done = Done(row_after, self._crc)
            return
        most = options.mpub_size
        if options.rows_per_second is not None:  # small enough for an even flow
            most = max(1, min(most, int(options.rows_per_second / 10)))
        pieces = list(payloads(topic, bodies, most, options.mpub_max_bytes))
        left = len(bodies)
        for piece in pieces:
            left -= piece.count
            self._crc = self._checked([piece])
            # Skipped rows leave no trace in a payload: progress counts them with the run's last one.
            self._push(piece, None if left and mask is not None else Done(row_after - left, self._crc))
        if not pieces and not self._window:
            self.done = Done(row_after, self._crc)

    def _checked(self, pieces: Iterable[Payload]) -> int:
        """Return the checksum with that of *pieces*, where somebody notes it."""
        return self._crc if self._on_progress is None else checksum(pieces, self._crc)

    def _write_deferred(self, topic: str, bodies: pa.Array, defers: pa.Array) -> None:
        """DPUB has no batch form: one by one, pipelined."""
        while self._window:
            self._settle()
        timeout = self._options.publish_timeout_ms / 1000
        waiting: deque[Any] = deque()
        for body, defer in zip(bodies.to_pylist(), defers.to_pylist(), strict=True):
            self._throttle(1)
            seconds = float(defer or 0.0)
            waiting.append(self._writer.publish_nowait(topic, body, defer=max(0.0, seconds), timeout=timeout))
            if len(waiting) >= 1000:
                waiting.popleft().result()
        for publication in waiting:
            publication.result()
        self.published += len(bodies)

    def _throttle(self, count: int) -> None:
        """Wait until *count* more rows are within rowsPerSecond."""
        rate = self._options.rows_per_second
        if rate is not None:
            now = time.monotonic()
            due = max(self._due, now - 1.0)  # no more than a second's worth at once after a pause
            self._sleep(max(0.0, due - now))
            self._due = due + count / rate

    def _push(self, payload: Payload, done: Done | None) -> None:
        self._throttle(payload.count)
        while len(self._window) >= self._options.pipeline:
            self._settle()
        publication = self._writer.send(payload, self._options.publish_timeout_ms / 1000)
        self._window.append((payload, publication, done))

    def _settle(self) -> None:
        """Wait for the oldest MPUB; send it again where that may help."""
        payload, publication, done = self._window.popleft()
        for attempt in range(self._options.max_retries + 1):
            try:
                publication.result()
                break
            except MAY_PASS as error:
                if attempt == self._options.max_retries:
                    raise
                self._pause(error, attempt)
                publication = self._writer.send(payload, self._options.publish_timeout_ms / 1000)
        self.published += payload.count
        if done is not None:
            self.done = done
            self._settled += 1
            if self._settled % self._options.pipeline == 0:
                self._note()

    def _pause(self, error: NSQError, attempt: int) -> None:
        if not isinstance(error, NotSent):  # NotSent has waited out its time already
            self._sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))

    def _note(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.done)


def runs(batch: pa.RecordBatch, default: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (topic, rows) for neighbouring rows of one topic, in order.

    Raises OptionError where a row has no topic; InvalidName for a topic nsqd would refuse.
    """
    if "topic" not in batch.schema.names:
        if not default:
            raise OptionError("topic", "", "set the option topic, or give the rows a column 'topic'")
        check_topic(default)
        yield default, batch
        return
    names = batch.column("topic").to_pylist()
    at = 0
    for index in range(1, len(names) + 1):
        if index == len(names) or names[index] != names[at]:
            topic = names[at] or default
            if not topic:
                raise InvalidBody("a row's topic is null and there is no option topic")
            check_topic(topic)
            yield topic, batch.slice(at, index - at)
            at = index
