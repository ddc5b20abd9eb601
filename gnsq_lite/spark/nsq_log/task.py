"""A task of a log reads all messages of one range, once and in order.

nsqd delivers a log only through a channel.  Each attempt of a task creates an ephemeral channel (if the topic allows
that), and sets the channel's position to the range's beginning.  The attempt reads until the offsets and lengths of its
messages cover the range without a gap.  nsqd deletes the channel when the connection ends.  So attempts do not affect
each other.
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
from gnsq_lite.spark.nsq_log.cluster import Leader, LogCluster, LogUnavailable
from gnsq_lite.spark.nsq_log.options import LogOptions
from gnsq_lite.spark.nsq_log.plan import Range
from gnsq_lite.spark.nsq_log.schema import to_log_batch
from gnsq_lite.youzan.dialect import YouzanDialect

#: Queued messages at which reading pauses, and seconds without a next message until a task tries another channel.
MOST_WAITING, STALLED = 50_000, 5.0
#: Maximum messages in flight.
WINDOW = 2500


class ChannelReader:
    """Reads a partition through a channel, from an offset on.  Finishes each message on receipt."""

    def __init__(self, options: LogOptions, leader: Leader, partition: int, begin: int, end: int) -> None:
        self._options, self._leader, self._partition, self._begin, self._end = options, leader, partition, begin, end
        self.arrived: deque[Any] = deque()
        self.fresh = threading.Event()
        self.lost = ""
        self._paused = self._was_connected = False
        self._channel = ""
        self._reader: Reader | None = None

    def open(self) -> None:
        """Create the channel and start to read.  Raises HTTPError."""
        options, leader = self._options, self._leader
        # If channels must be registered, all attempts use the registered channel, and slow each other down.
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
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            **options.nsq,
        )
        self._reader.start(block=False)

    def _take(self, message: Any) -> None:
        """Queue a received message.  The Reader finishes the message afterwards.  Runs in the I/O thread."""
        if message.queue_offset < self._end:
            self.arrived.append(message)
        full = message.queue_offset >= self._end or len(self.arrived) >= MOST_WAITING
        if full and not self._paused and self._reader is not None:
            self._paused = True
            self._reader.pause()
        if not self.fresh.is_set():
            self.fresh.set()

    def _on_connected(self, address: str) -> None:
        self._was_connected = True

    def _on_disconnected(self, endpoint: str, reason: object) -> None:
        self.lost = str(reason) or "the connection ended"
        self.fresh.set()

    def resume_if_room(self) -> None:
        """Resume reading if fewer than half of MOST_WAITING messages wait."""
        if self._paused and self._reader is not None and len(self.arrived) < MOST_WAITING // 2:
            self._paused = False
            self._reader.resume()

    def close(self) -> None:
        """Close the Reader.  Delete an ephemeral channel that never had a consumer, because nsqd would keep it."""
        if self._reader is not None:
            self._reader.close(2.0)
        if self._channel and not self._was_connected:
            nsqd = NsqdClient(self._leader.node.http_address, http_timeout=2.0)
            with suppress(HTTPError):
                nsqd.delete_channel(self._options.topic, self._channel, partition=self._partition)


class RangeTask:
    """Reads one range.

    Args:
        make_channel: Creates a ChannelReader that begins at an offset.
    """

    def __init__(
        self,
        options: LogOptions,
        wanted: Range,
        cluster: LogCluster,
        make_channel: Callable[..., ChannelReader] = ChannelReader,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._range, self._cluster = options, wanted, cluster
        self._make_channel, self._clock, self._sleep = make_channel, clock, sleep
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
            channel = self._opened()
            if channel is not None:
                try:
                    yield from self._through(channel)
                finally:
                    channel.close()
            if self._next < self._range.end:
                self._handle_missing()

    def _opened(self) -> ChannelReader | None:
        try:
            leader = self._cluster.leader(self._range.partition)
        except (HTTPError, LogUnavailable) as error:
            self._trouble = str(error)
            return None
        if leader is None:
            self._trouble = "the partition has no leader"
            return None
        channel = self._make_channel(self._options, leader, self._range.partition, self._next, self._range.end)
        try:
            channel.open()
        except BaseException as error:
            channel.close()
            if not isinstance(error, HTTPError):
                raise
            self._trouble = str(error)
            return None
        return channel

    def _through(self, channel: ChannelReader) -> Iterator[pa.RecordBatch]:
        """Yield messages until the range or the connection ends, or no next message arrives for STALLED seconds."""
        self._ahead.clear()
        ready: list[Any] = []
        last_progress = self._clock.now()
        while self._next < self._range.end:
            channel.fresh.wait(0.05)
            channel.fresh.clear()
            moved = False
            while channel.arrived and len(ready) < BATCH_ROWS:
                moved = self._place(channel.arrived.popleft(), ready) or moved
            channel.resume_if_room()
            now = self._clock.now()
            if moved:
                last_progress = self._progress = now
            elif not channel.arrived and (channel.lost or now - last_progress >= STALLED):
                self._trouble = channel.lost or self._trouble
                break
            if len(ready) >= BATCH_ROWS:
                yield self._batch(ready)
                ready = []
            if channel.arrived:
                channel.fresh.set()
        if ready:
            yield self._batch(ready)

    def _place(self, message: Any, ready: list[Any]) -> bool:
        """Buffer *message*, append messages before the first gap to *ready*, and return whether *ready* grew."""
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

    def _handle_missing(self) -> None:
        """Pause before another try, or skip lost messages.  Raises DataLoss, or LogUnavailable after pollTimeoutMs."""
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
