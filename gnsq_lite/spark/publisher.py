"""Publish Arrow batches: MPUBs pipelined over a Writer that the worker process keeps between tasks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from gnsq_lite import Writer
from gnsq_lite.errors import MpubFailedError, NotSent, NSQError, OutcomeUnknown, PubFailedError
from gnsq_lite.publish.publication import Publish
from gnsq_lite.spark.mpub import Bodies, Payload, checksum, payloads
from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.progress import NOTHING, Done
from gnsq_lite.spark.rows import Checked, check
from gnsq_lite.wire import commands

#: Rows processed at once, because their joined bodies are a copy in memory.
_SLICE = 20_000
#: Bytes of a task's bodies that are checked before the first is sent: if one is invalid, none of them is sent.
CHECKED_BYTES = 64 << 20
#: Errors worth a retry: nsqd unreachable, its answer lost, nsqd exiting or out of disk.
MAY_PASS = (NotSent, OutcomeUnknown, PubFailedError, MpubFailedError)
#: First and maximum seconds before a failed MPUB is sent again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class OtherRows(NSQError):
    """A retried task does not begin with the rows that its marker counts."""


class PayloadWriter(Writer):
    """A Writer that sends MPUB payloads unchanged, without checking each message again."""

    def send(self, payload: Payload, timeout: float) -> Publish:
        """Queue a payload and return its Publication.  Raises ClosedError."""
        core = self._core
        if core is None or core.closing:
            core = self._start(timeout)
        deadline = core.clock.now() + timeout
        publish = Publish(core.loop, payload.topic, Bodies(payload), timeout, deadline, batch=True)
        if not core.settings.dialect.is_routed:
            publish.data = commands.multipublish_head(payload.topic) + payload.data
        core.carry(publish)
        return publish


_writers: dict[tuple[int, str, int, int], PayloadWriter] = {}
_writers_lock = threading.Lock()


def shared_writer(options: SinkOptions) -> PayloadWriter:
    """Return this process's Writer for *options*; its connections stay open between tasks."""
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
    """Publish one task's rows in order.  The rows of *skip* are skipped: an earlier attempt published them."""

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
        #: The part of the task that nsqd has confirmed or that was skipped.
        self.done = skip
        #: Number of messages that this attempt published.
        self.published = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Publish all rows and return how many.

        Raises:
            BadRows, OptionError: nsqd would refuse a row.  If the row is in the first CHECKED_BYTES, no row was sent.
            OtherRows: the task does not begin with the rows to skip; no row was sent.
            NSQError: nsqd refused, or could not be reached, after all retries.
        """
        held: list[tuple[Checked, int]] = []
        size = 0
        for batch in batches:
            for at in range(0, batch.num_rows, _SLICE):
                one = self._check(batch.slice(at, _SLICE))
                held.append((one, self._seen))
                size += one.size
                if size > CHECKED_BYTES:
                    self._send(held)
        if self._seen < self._skip.rows:
            self._refuse()
        self._send(held)
        while self._window:
            self._settle()
        self._note()
        return self.published

    def _check(self, batch: pa.RecordBatch) -> Checked:
        """Check rows, and skip rows that an earlier attempt published."""
        known = min(batch.num_rows, max(0, self._skip.rows - self._seen))
        self._seen += batch.num_rows
        if known:
            for run in check(batch.slice(0, known), self._options).runs:
                self._crc = checksum(payloads("", run.bodies, sys.maxsize, sys.maxsize), self._crc)
            if self._seen >= self._skip.rows and self._crc != self._skip.crc:
                self._refuse()
        return check(batch.slice(known), self._options)

    def _refuse(self) -> None:
        raise OtherRows(
            f"the task does not begin with the {self._skip.rows} rows that its marker in markerDir counts as published:"
            " the query, its options or its source changed, or a shuffle orders its rows; the marker is removed, and"
            " the task publishes all its rows when it runs again"
        )

    def _send(self, held: list[tuple[Checked, int]]) -> None:
        """Publish checked rows, given with the number of the task's rows up to the last of them."""
        for one, end in held:
            self._send_rows(one, end)
        held.clear()

    def _send_rows(self, one: Checked, end: int) -> None:
        options = self._options
        most = options.mpub_size
        if options.rows_per_second is not None:  # small enough for an even flow
            most = max(1, min(most, int(options.rows_per_second / 10)))
        records = pa.array(one.records, pa.binary())
        for piece in payloads(options.bad_row_topic, records, most, options.mpub_max_bytes):
            self._push(piece, None)
        left = sum(len(run.bodies) for run in one.runs)
        for run in one.runs:
            if run.defers is not None:
                self._write_deferred(run.topic, run.bodies, run.defers)
                left -= len(run.bodies)
                self._crc = self._checked(payloads(run.topic, run.bodies, sys.maxsize, sys.maxsize))
                if one.is_whole or not left:
                    self.done = Done(end - left, self._crc)
                continue
            for piece in payloads(run.topic, run.bodies, most, options.mpub_max_bytes):
                left -= piece.count
                self._crc = self._checked([piece])
                # Skipped rows are in no payload: progress counts them with the row before.
                self._push(piece, Done(end - left, self._crc) if one.is_whole or not left else None)
        if not one.runs and not self._window:
            self.done = Done(end, self._crc)

    def _checked(self, pieces: Iterable[Payload]) -> int:
        """Return the checksum including *pieces*, if there is a marker."""
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
            due = max(self._due, now - 1.0)  # after a pause at most one second's rows at once
            self._sleep(max(0.0, due - now))
            self._due = due + count / rate

    def _push(self, payload: Payload, done: Done | None) -> None:
        self._throttle(payload.count)
        while len(self._window) >= self._options.pipeline:
            self._settle()
        publication = self._writer.send(payload, self._options.publish_timeout_ms / 1000)
        self._window.append((payload, publication, done))

    def _settle(self) -> None:
        """Wait for the oldest MPUB; send it again if a retry may help."""
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
        if not isinstance(error, NotSent):  # NotSent has used up its time already
            self._sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))

    def _note(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.done)
