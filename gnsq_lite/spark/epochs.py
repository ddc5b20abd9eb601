"""The streaming source with receivers in the tasks (receiver=executors): consumption grows with the executors.

An offset is the number of an epoch.  A micro-batch is one epoch; its task of a slot receives for epochMs, publishes
what came as chunks of the slot's log, finishes the messages and yields the rows.  A task that runs again yields the
published chunks first.  Needs a spoolDir that all executors share: a directory, or an object store.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gnsq_lite.errors import OptionError
from gnsq_lite.message import Message, finish_all, send_back
from gnsq_lite.spark.backlog import EpochBacklog
from gnsq_lite.spark.compat import available_now_mixin
from gnsq_lite.spark.depth import ChannelDepth
from gnsq_lite.spark.epochlog import End, EpochLog, Plan, forget_epochs, plan_epoch, read_plan
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.offsets import OLDER, Offset, parse_offset
from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.places import open_epoch_spool
from gnsq_lite.spark.receiver import ReaderReceiver, Receiver, take_some
from gnsq_lite.spark.schema import arrow_schema, to_batch
from gnsq_lite.spark.segments import SegmentDamaged, conform
from gnsq_lite.spark.shelves import EpochSpool
from gnsq_lite.spark.spoolmeta import Meta, SpoolError, tell_loss
from gnsq_lite.spark.stream import exit_after, settle_process

log = logging.getLogger("gnsq_lite.spark")

#: Messages of one chunk, and the seconds it may be filled.
CHUNK_ROWS, CHUNK_SECONDS = 10_000, 0.2
#: Seconds messages that were under way when the epoch ended have to arrive; later ones go back to nsqd.
LINGER = 0.05

_AvailableNow: Any = available_now_mixin()


@dataclass
class EpochPartition(InputPartition):
    """A task: one slot of one epoch."""

    epoch: int
    slot: int
    receivers: int
    backlog_until_ns: int
    spool: str

    def __repr__(self) -> str:
        return f"EpochPartition(epoch={self.epoch}, slot={self.slot} of {self.receivers})"


class NsqEpochReader(DataSourceStreamReader, _AvailableNow):
    """Driver side: counts epochs.  Task side: receives."""

    files: type[Files] = Files

    def __init__(self, options: SourceOptions) -> None:
        if options.ordered and not options.partitions:
            raise OptionError("partitions", (), "receiver=executors with ordered=true needs the partitions named")
        self._options = options
        self._spool: EpochSpool | None = None
        self._meta: Meta | None = None
        self._depth: ChannelDepth | None = None
        self._backlog_until_ns = 0
        self._first: int | None = None
        self._backlog = EpochBacklog(options)
        self._last: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spool": None, "_meta": None, "_depth": None}

    def _started(self) -> Meta:
        if self._meta is None:
            settle_process()
            options = self._options
            wanted = Meta(str(uuid.uuid4()), options.topic, options.channel)
            meta = self._opened().open(wanted, options.lock_wait_ms / 1000)
            if (meta.topic, meta.channel) != (options.topic, options.channel):
                raise SpoolError(
                    f"spool {options.spool_dir} belongs to {meta.topic}/{meta.channel}: each query needs its own"
                )
            self._meta = meta
            self._depth = ChannelDepth(options)
        return self._meta

    def _opened(self) -> EpochSpool:
        if self._spool is None:
            self._spool = open_epoch_spool(self._options, self.files())
        return self._spool

    # -- driver side

    def initialOffset(self) -> dict[str, Any]:
        """Return the last committed epoch."""
        meta = self._started()
        self._last = Offset(meta.uuid, meta.committed, "epoch")
        return self._last.as_dict()

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the next epoch; the same one where AvailableNow's backlog is read."""
        meta = self._started()
        begin = parse_offset(start, "epoch") if start is not None else self._last or Offset(meta.uuid, meta.committed)
        begin = self._base(meta, replace(begin, unit="epoch"))
        done = self._backlog_until_ns and self._is_read(begin.number)
        self._last = begin if done else replace(begin, number=begin.number + 1)
        return self._last.as_dict()

    def _base(self, meta: Meta, start: Offset) -> Offset:
        """Return *start* as a position in this spool; raise DataLoss where it is not one."""
        if start.spool != meta.uuid:
            why = f"is not the one of this query's checkpoint ({start.spool}, now {meta.uuid})"
        elif start.number < meta.committed:
            why = f"has epochs committed up to {meta.committed}, not {start.number}: {OLDER}"
        else:
            return start
        why = f"spool {self._options.spool_dir} {why}"
        tell_loss(why, "what it held", fails=self._options.fail_on_data_loss)
        return Offset(meta.uuid, max(meta.committed, start.number), "epoch")

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest epoch and the channel's depth, for the query's progress alone; None before the first."""
        if self._last is None or self._depth is None:
            return None
        return {**self._last.as_dict(), "depth": self._depth.look()}

    def _is_read(self, epoch: int) -> bool:
        """Whether the last epochs found nothing of the backlog any more."""
        self._first = epoch if self._first is None else self._first
        plan = read_plan(self._opened().shelf, epoch) if epoch > self._first else None
        if plan is None:
            return False
        ends = [EpochLog(self._opened().shelf, epoch, slot).end() for slot in range(plan.receivers)]
        whole = [end for end in ends if end is not None]
        return len(whole) == len(ends) and self._backlog.is_read(whole)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what the backlog is: all that was published up to now, by nsqd's clock."""
        self._backlog_until_ns = time.time_ns()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return a task per slot and epoch; as planned the first time."""
        meta = self._started()
        first, last = parse_offset(start, "epoch"), parse_offset(end, "epoch")
        if last.spool != meta.uuid:
            self._base(meta, last)
            return []
        begin = self._base(meta, first).number
        tasks = []
        self._opened().check_mine()
        for epoch in range(begin + 1, last.number + 1):
            wanted = Plan(self._options.receivers, self._backlog_until_ns)
            plan = plan_epoch(self._opened().shelf, epoch, wanted)
            tasks += [
                EpochPartition(epoch, slot, plan.receivers, plan.backlog_until_ns, meta.uuid)
                for slot in range(plan.receivers)
            ]
        return tasks

    def commit(self, end: Mapping[str, Any]) -> None:
        """Remove the logs of epochs Spark needs no more."""
        meta, last = self._started(), parse_offset(end, "epoch")
        if last.spool == meta.uuid and last.number > meta.committed:
            self._meta = replace(meta, committed=last.number)
            self._opened().commit(self._meta)
            forget_epochs(self._opened().shelf, last.number)

    def stop(self) -> None:
        """Let go of the spool; tasks end by themselves within their epoch."""
        spool, self._spool, self._meta = self._spool, None, None
        if spool is not None:
            guard = exit_after(20.0)
            try:
                spool.close()
            finally:
                guard.set()

    # -- task side

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a slot's rows: what was published, then what comes until the epoch ends."""
        if not isinstance(partition, EpochPartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        self._opened().check_visible(partition.spool)  # before anything is received: it would be finished unseen
        return self._task(partition).rows()

    def _task(self, partition: EpochPartition) -> EpochTask:
        log = EpochLog(self._opened().shelf, partition.epoch, partition.slot)
        return EpochTask(log, self._options, partition, self._make_receiver(partition))

    def _make_receiver(self, partition: EpochPartition) -> Receiver:
        options = self._options
        return ReaderReceiver(options, slot_partitions(options, partition) if options.partitions else None)


def slot_partitions(options: SourceOptions, partition: EpochPartition) -> tuple[int, ...]:
    """Return the named topic partitions that are the slot's: each has one reader, so its order is kept."""
    return tuple(p for p in options.partitions if p % partition.receivers == partition.slot)


class EpochTask:
    """One attempt of one task."""

    def __init__(self, log: EpochLog, options: SourceOptions, partition: EpochPartition, receiver: Receiver) -> None:
        self._log, self._options, self._partition, self._receiver = log, options, partition, receiver
        self._queue: deque[Message] = deque()
        self._closing = False
        self._number = 0
        self._rows = self._backlog = 0
        self._heard = time.monotonic()
        self._state: tuple[bool, list[str]] = False, []
        share = options.max_offsets_per_trigger
        self._most = None if share is None else max(1, share // partition.receivers)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the slot's epoch, and leave nothing in flight."""
        for batches in self._published():
            yield from batches
        if self._ended:
            return
        if self._options.partitions and not slot_partitions(self._options, self._partition):
            yield from self._finish(End(self._rows, 0, True, silent=math.inf))
            return
        self._receiver.start(self._take)
        try:
            deadline = time.monotonic() + self._options.epoch_ms / 1000
            while not self._ended and time.monotonic() < deadline and not self._is_full():
                yield from self._chunk(min(deadline, time.monotonic() + CHUNK_SECONDS))
                self._look()
                self._receiver.check()
            self._receiver.pause()
            if not self._is_full():
                yield from self._chunk(time.monotonic() + LINGER)
            self._look()
            silent = time.monotonic() - self._heard
        finally:
            self._closing = True
            send_back(self._queue)
            self._receiver.stop(5.0)
        yield from self._finish(End(self._rows, self._backlog, *self._state, silent))

    def _look(self) -> None:
        """Look which nsqds are there; a change is no silence."""
        state = self._receiver.is_connected(), self._receiver.missing()
        if state != self._state:
            self._heard, self._state = time.monotonic(), state

    def _published(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield chunks from the next number on, by whomever they were published.

        Raises SegmentDamaged, DataLoss.
        """
        self._ended = False
        while True:
            try:
                entry = self._log.read(self._number)
            except SegmentDamaged as error:
                if self._options.fail_on_data_loss:
                    raise
                log.error("%s; failOnDataLoss=false: going on without it", error)
                self._number += 1
                continue
            if entry is None:
                return
            if isinstance(entry, End):
                self._ended = True
                self._check(entry)
                return
            self._number += 1
            schema = arrow_schema(self._options.include_youzan)
            batches = [conform(batch, schema) for batch in entry]
            self._rows += sum(batch.num_rows for batch in batches)
            yield batches

    def _check(self, end: End) -> None:
        """Raise DataLoss, or tell, where chunks are gone that were there at the end; others may have their names."""
        if end.rows == self._rows:
            return
        partition = self._partition
        why = f"epoch {partition.epoch} ended with {end.rows} rows in slot {partition.slot}, and has {self._rows} now"
        tell_loss(why, "the chunks that are gone", fails=self._options.fail_on_data_loss)

    def _take(self, messages: list[Message]) -> None:
        if self._closing:
            send_back(messages)
        else:
            self._queue.extend(messages)

    def _is_full(self) -> bool:
        return self._most is not None and self._rows >= self._most

    def _chunk(self, until: float) -> Iterator[pa.RecordBatch]:
        """Gather messages until *until*, publish them, finish them, and yield their rows."""
        room = CHUNK_ROWS if self._most is None else min(CHUNK_ROWS, self._most - self._rows)
        half_window = max(1, self._options.max_in_flight // 2)
        while len(self._queue) < min(room, half_window) and time.monotonic() < until:
            time.sleep(0.002)
        messages = take_some(self._queue, room, self._options.segment_max_bytes)
        if not messages or self._ended:
            send_back(messages)
            return
        batch = to_batch(messages, self._options.include_youzan)
        try:
            counts = self._publish(batch)
        except BaseException:
            send_back(messages)
            raise
        if counts:
            finish_all(messages)
            self._number += 1
            self._rows += len(messages)
            backlog = sum(m.timestamp_ns <= self._partition.backlog_until_ns for m in messages)
            self._backlog += backlog
            self._heard = time.monotonic() if backlog else self._heard
            yield batch
            return
        send_back(messages)  # another attempt was first: its chunk counts, these come again
        for batches in self._published():
            yield from batches

    def _publish(self, batch: pa.RecordBatch) -> bool:
        """Publish the next chunk; False: another attempt has."""
        if not self._log.publish(self._number, [batch]):
            return False
        if self._log.is_over():
            raise SpoolError(f"epoch {self._partition.epoch} was committed without this attempt: it ends")
        return True

    def _finish(self, end: End) -> Iterator[pa.RecordBatch]:
        while not self._ended:
            if self._log.finish(self._number, replace(end, rows=self._rows)):
                return
            for batches in self._published():
                yield from batches
