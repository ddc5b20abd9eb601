"""A task of a log reads all messages of one range, once and in order.

nsqd delivers a log only through a channel.  Each attempt creates its own channel and sets the channel's position to the
range's begin.  It reads until the messages, by their offsets and lengths, cover the range without a gap.  nsqd deletes
the channel when the connection ends.  So attempts do not affect each other.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from gnsq_lite import Reader
from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import HTTPError, NSQError
from gnsq_lite.http import NsqdClient
from gnsq_lite.options import format_address
from gnsq_lite.recording.errors import report_loss
from gnsq_lite.recording.frames import BATCH_ROWS
from gnsq_lite.spark.logcluster import Leader, LogCluster, LogUnavailable
from gnsq_lite.spark.logoptions import LogOptions
from gnsq_lite.spark.logplan import Range
from gnsq_lite.spark.logschema import to_log_batch
from gnsq_lite.youzan.dialect import YouzanDialect

#: Waiting messages above which reading pauses, and seconds without a message of the range until the task tries another
#: channel.
MOST_WAITING, STALLED = 50_000, 5.0
#: Maximum messages in flight.
WINDOW = 2500


class Passage:
    """Reads a partition through a channel, from an offset on.  It finishes each message on receipt."""

    def __init__(self, options: LogOptions, leader: Leader, partition: int, begin: int, end: int) -> None:
        self._options, self._leader, self._partition, self._begin, self._end = options, leader, partition, begin, end
        self.arrived: deque[Any] = deque()
        self.fresh = threading.Event()
        self.lost = ""
        self._paused = self._joined = False
        self._channel = ""
        self._reader: Reader | None = None

    def open(self) -> None:
        """Create the channel and start to read.  Raises HTTPError."""
        options, leader = self._options, self._leader
        # If channels must be registered, use the registered channel; attempts must not use it at the same time.
        channel = options.channel if leader.registered_only else f"{options.channel}-{uuid.uuid4().hex}#ephemeral"
        nsqd = NsqdClient(leader.node.http_address)
        if not leader.registered_only:
            self._channel = channel
            nsqd.create_channel(options.topic, channel, partition=self._partition)
        place = {"topic": options.topic, "channel": channel, "partition": self._partition}
        nsqd.post("/channel/setoffset", place, b"virtual_queue:%d" % self._begin)
        dialect = YouzanDialect(
            partitions=(self._partition,), positions=True, ordered=leader.ordered, extend_support=leader.ext
        )
        self._reader = Reader(
            options.topic,
            channel,
            self._take,
            nsqd_tcp_addresses=format_address(leader.node.tcp_address),
            dialect=dialect,
            handler_pool="inline",
            max_in_flight=WINDOW,
            max_attempts=0,
            backoff=False,
            handle_signals=False,
            on_connected=self._join,
            on_disconnected=self._parted,
            **options.nsq,
        )
        self._reader.start(block=False)

    def _take(self, message: Any) -> None:
        """Queue a received message; the Reader finishes it after the call.  Runs in the I/O thread."""
        if message.queue_offset < self._end:
            self.arrived.append(message)
        full = message.queue_offset >= self._end or len(self.arrived) >= MOST_WAITING
        if full and not self._paused and self._reader is not None:
            self._paused = True
            self._reader.pause()
        if not self.fresh.is_set():
            self.fresh.set()

    def _join(self, address: str) -> None:
        self._joined = True

    def _parted(self, endpoint: str, reason: object) -> None:
        self.lost = str(reason) or "the connection ended"
        self.fresh.set()

    def relieve(self) -> None:
        """Resume reading once there is room."""
        if self._paused and self._reader is not None and len(self.arrived) < MOST_WAITING // 2:
            self._paused = False
            self._reader.resume()

    def close(self) -> None:
        """Close the Reader, and delete the channel if it had no consumer.  nsqd deletes other channels itself."""
        if self._reader is not None:
            self._reader.close(2.0)
        if self._channel and not self._joined:
            nsqd = NsqdClient(self._leader.node.http_address, http_timeout=2.0)
            with suppress(HTTPError):
                nsqd.delete_channel(self._options.topic, self._channel, partition=self._partition)


class RangeTask:
    """Reads one range.

    Args:
        passage: Creates a Passage from an offset on.
    """

    def __init__(
        self,
        options: LogOptions,
        wanted: Range,
        cluster: LogCluster,
        passage: Callable[..., Passage] = Passage,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._range, self._cluster = options, wanted, cluster
        self._passage, self._clock, self._sleep = passage, clock, sleep
        #: Offset of the range's next message.
        self._next = wanted.begin
        self._ahead: dict[int, Any] = {}
        self._trouble = ""
        self._progress = clock.now()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the range's rows.

        Raises:
            DataLoss: messages are gone, and failOnDataLoss is true.
            LogUnavailable: the next message did not arrive within pollTimeoutMs.
        """
        while self._next < self._range.end:
            passage = self._opened()
            if passage is not None:
                try:
                    yield from self._through(passage)
                finally:
                    passage.close()
            if self._next < self._range.end:
                self._judge()

    def _opened(self) -> Passage | None:
        try:
            leader = self._cluster.leader(self._range.partition)
        except (HTTPError, LogUnavailable) as error:
            self._trouble = str(error)
            return None
        if leader is None:
            self._trouble = "the partition has no leader"
            return None
        passage = self._passage(self._options, leader, self._range.partition, self._next, self._range.end)
        try:
            passage.open()
        except BaseException as error:
            passage.close()
            if not isinstance(error, HTTPError):
                raise
            self._trouble = str(error)
            return None
        return passage

    def _through(self, passage: Passage) -> Iterator[pa.RecordBatch]:
        """Yield messages of *passage* until the range's end, or until no message of the range arrives."""
        self._ahead.clear()
        ready: list[Any] = []
        heard = self._clock.now()
        while self._next < self._range.end:
            passage.fresh.wait(0.05)
            passage.fresh.clear()
            moved = False
            while passage.arrived and len(ready) < BATCH_ROWS:
                moved = self._place(passage.arrived.popleft(), ready) or moved
            passage.relieve()
            now = self._clock.now()
            if moved:
                heard = self._progress = now
            elif not passage.arrived and (passage.lost or now - heard >= STALLED):
                self._trouble = passage.lost or self._trouble
                break
            if len(ready) >= BATCH_ROWS:
                yield self._batch(ready)
                ready = []
            if passage.arrived:
                passage.fresh.set()
        if ready:
            yield self._batch(ready)

    def _place(self, message: Any, ready: list[Any]) -> bool:
        """Store *message* by its offset; append messages without a gap to *ready*.  Return whether *ready* grew."""
        place = message.queue_offset
        if place < self._next or place >= self._range.end:
            return False
        self._ahead[place] = message
        before = self._next
        while self._next in self._ahead:
            found = self._ahead.pop(self._next)
            self._next += found.raw_size
            ready.append(found)
        return self._next > before

    def _batch(self, messages: list[Any]) -> pa.RecordBatch:
        return to_log_batch(self._options.topic, self._range.partition, messages)

    # -- missing messages

    def _judge(self) -> None:
        """Decide what to do if the next message did not arrive: wait, continue after a gap, or raise."""
        partition, patience = self._range.partition, self._options.poll_timeout_ms / 1000
        late = self._clock.now() - self._progress >= patience
        extent = mark = None
        try:
            extent = self._cluster.extents().get(partition)
            mark = self._cluster.at(partition, self._next) if self._ahead else None
        except NSQError as error:
            self._trouble = str(error)
        if extent is not None and extent.begin > self._next:
            self._lost(f"the log begins at {extent.begin} now", extent.begin)
        elif mark is not None and mark.place > self._next:  # nsqd itself reports a gap before its next message
            self._lost(f"the next message is at {mark.place}", mark.place)
        elif late and extent is not None and extent.end < self._range.end:
            self._lost(f"the log ends at {extent.end}, before {self._range.end}", self._range.end)
        elif late:
            raise LogUnavailable(
                f"partition {partition} of {self._options.topic}: no message at {self._next} within {patience:g} s"
                + (f" ({self._trouble})" if self._trouble else "")
            )
        else:
            self._sleep(0.2)

    def _lost(self, why: str, to: int) -> None:
        where = f"partition {self._range.partition} of {self._options.topic} lacks {self._next}"
        report_loss(f"{where}: {why}", fails=self._options.fail_on_data_loss)
        self._next, self._progress = min(to, self._range.end), self._clock.now()
