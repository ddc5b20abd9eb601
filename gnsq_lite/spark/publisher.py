"""Publishes Arrow batches as pipelined MPUBs, through a Writer that the worker process keeps between tasks."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from gnsq_lite import Writer
from gnsq_lite.arrow_values import text_array
from gnsq_lite.clock import Pace
from gnsq_lite.errors import DpubFailedError, MpubFailedError, NotSent, NSQError, OutcomeUnknown, PubFailedError
from gnsq_lite.publish.publication import Publish
from gnsq_lite.spark.mpub import Bodies, Payload, checksum, payloads
from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.progress import NOTHING, Done
from gnsq_lite.spark.rows import CheckedRows, check
from gnsq_lite.wire import commands

#: Maximum rows, and about the maximum bytes, processed at once.  The joined bodies are a copy in memory, and a marker
#: counts the rows of a slice with bad rows only at the end of the slice.
_SLICE, _SLICE_BYTES = 20_000, 8 << 20
#: Bytes of bodies that a task checks before it sends the first row.  If one of these rows is invalid, no row is sent.
CHECKED_BYTES = 64 << 20
#: Errors that are retried: nsqd was unreachable, was exiting or had a full disk, or its answer was lost.
TRANSIENT = (NotSent, OutcomeUnknown, PubFailedError, MpubFailedError, DpubFailedError)
#: First and maximum seconds before a failed MPUB or DPUB is sent again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class OtherRows(NSQError):
    """A retried task does not begin with the rows that its marker counts."""


class PayloadWriter(Writer):
    """A Writer that sends MPUB payloads unchanged, without checking each message again."""

    def send(self, payload: Payload, timeout: float) -> Publish:
        """Queue a payload and return its Publish.  Raises ClosedError."""
        core = self._core
        if core is None or core.closing:
            core = self._start(timeout)
        deadline = core.clock.now() + timeout
        publish = Publish(payload.topic, Bodies(payload), timeout, deadline, batch=True)
        if not core.settings.dialect.is_routed:
            publish.data = commands.multipublish_head(payload.topic) + payload.data
        core.carry(publish)
        return publish


_writers: dict[tuple[int, str, int, int], PayloadWriter] = {}
_writers_lock = threading.Lock()


def shared_writer(options: SinkOptions) -> PayloadWriter:
    """Return this process's Writer for *options*.  The Writer's connections stay open between tasks."""
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
    """Publishes one task's rows in order, except the rows of *skip*, which an earlier attempt published."""

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
        self._pace = Pace(options.rows_per_second or 0.0, wait=sleep)  # after a pause, a burst of one second at most
        #: The part of the task that nsqd has confirmed or that was skipped.
        self.done = skip
        #: Number of messages that this attempt published.
        self.published = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Publish all rows, and return the number of published messages.

        Raises:
            BadRows, OptionError: nsqd would refuse a row.  If the row is in the first CHECKED_BYTES, no row was sent.
            OtherRows: the task does not begin with the rows to skip.  No row was sent.
            NSQError: nsqd refused a row or was unreachable, after all retries.
        """
        held: list[tuple[CheckedRows, int]] = []
        size = 0
        for batch in batches:
            rows = max(1, min(_SLICE, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)))
            for at in range(0, batch.num_rows, rows):
                one = self._check(batch.slice(at, rows))
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

    def _check(self, batch: pa.RecordBatch) -> CheckedRows:
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

    def _send(self, held: list[tuple[CheckedRows, int]]) -> None:
        """Publish checked slices of rows.  *held* has (slice, number of the task's rows up to the slice's end)."""
        for one, end in held:
            self._send_rows(one, end)
        held.clear()

    def _send_rows(self, one: CheckedRows, end: int) -> None:
        options = self._options
        most = options.mpub_size
        if options.rows_per_second is not None:  # about ten MPUBs a second
            most = max(1, min(most, int(options.rows_per_second / 10)))
        records = text_array(one.records, pa.binary())
        for piece in payloads(options.bad_row_topic, records, most, options.mpub_max_bytes):
            self._push(piece, None)
        left = sum(len(run.bodies) for run in one.runs)
        for run in one.runs:
            if run.defers is not None:
                self._write_deferred(run.topic, run.bodies, run.defers)
                left -= len(run.bodies)
                self._crc = self._checksum(payloads(run.topic, run.bodies, sys.maxsize, sys.maxsize))
                if one.is_whole or not left:
                    self.done = Done(end - left, self._crc)
                continue
            for piece in payloads(run.topic, run.bodies, most, options.mpub_max_bytes):
                left -= piece.count
                self._crc = self._checksum([piece])
                # Bad rows are in no payload, so the progress of a slice with bad rows is known only at its end.
                self._push(piece, Done(end - left, self._crc) if one.is_whole or not left else None)
        if not one.runs and not self._window:
            self.done = Done(end, self._crc)

    def _checksum(self, pieces: Iterable[Payload]) -> int:
        """Return the marker's checksum continued with *pieces*, or the old value if the task has no marker."""
        return self._crc if self._on_progress is None else checksum(pieces, self._crc)

    def _write_deferred(self, topic: str, bodies: pa.Array, defers: pa.Array) -> None:
        """Publish rows one by one with pipelined DPUBs, because DPUB has no batch form."""
        while self._window:
            self._settle()
        timeout = self._options.publish_timeout_ms / 1000
        waiting: deque[tuple[Any, Callable[[], Any]]] = deque()
        for body, defer in zip(bodies.to_pylist(), defers.to_pylist(), strict=True):
            self._pace.take()
            seconds = max(0.0, float(defer or 0.0))
            send = functools.partial(self._writer.publish_nowait, topic, body, defer=seconds, timeout=timeout)
            waiting.append((send(), send))
            if len(waiting) >= 1000:
                self._confirm(*waiting.popleft())
        for publication, again in waiting:
            self._confirm(publication, again)
        self.published += len(bodies)

    def _push(self, payload: Payload, done: Done | None) -> None:
        self._pace.take(payload.count)
        while len(self._window) >= self._options.pipeline:
            self._settle()
        publication = self._writer.send(payload, self._options.publish_timeout_ms / 1000)
        self._window.append((payload, publication, done))

    def _settle(self) -> None:
        """Wait for the oldest MPUB."""
        payload, publication, done = self._window.popleft()
        self._confirm(publication, lambda: self._writer.send(payload, self._options.publish_timeout_ms / 1000))
        self.published += payload.count
        if done is not None:
            self.done = done
            self._settled += 1
            if self._settled % self._options.pipeline == 0:
                self._note()

    def _confirm(self, publication: Any, send: Callable[[], Any]) -> None:
        """Wait for a publication.  After a transient error call *send* again, at most maxRetries times."""
        for attempt in range(self._options.max_retries + 1):
            try:
                publication.result()
                return
            except TRANSIENT as error:
                if attempt == self._options.max_retries:
                    raise
                if not isinstance(error, NotSent):  # the Writer has already waited before it raised NotSent
                    self._sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
                publication = send()

    def _note(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.done)
