"""The thread that makes received messages durable, and only then finishes them (PIPE-2).

The Reader's I/O thread appends to a queue and goes on reading; this thread takes all that is there, writes it as one
Arrow batch, waits for the disk, and sends the FINs.  While it waits for the disk the next messages arrive.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ConnectError
from gnsq_lite.message import Message, finish_all, send_back
from gnsq_lite.recording import schema
from gnsq_lite.recording.backlog import Horizon
from gnsq_lite.recording.known import Known
from gnsq_lite.recording.receiver import Receiver, take_some
from gnsq_lite.spark.objectspool import ObjectSpool
from gnsq_lite.spark.options import SEGMENT_BYTES, SourceOptions
from gnsq_lite.spark.spool import Spool
from gnsq_lite.spark.spoolmeta import SpoolError

log = logging.getLogger("gnsq_lite.spark")

#: Committed segments, and bytes of them, that stay before their keys are written to the index.
KEPT_SEGMENTS, KEPT_BYTES = 100, 16 << 20
#: Segments after which the index is written: a restart reads those again whose keys are not in it.
UNINDEXED = 1000
#: Messages of one write at the most.
MOST_AT_ONCE = 10_000
#: Writes that may fail in a row, with a pause between them, before the query is told.
MOST_FAILURES = 5
#: Seconds an orderly stop may take.
STOP_TIMEOUT = 8.0


class SpoolFailed(SpoolError):
    """The spool's disk refuses writes; no message was acknowledged that is not stored."""


class Collector:
    """Receives into a spool.  The spool belongs to this object; other threads use it under :attr:`lock`."""

    def __init__(
        self,
        spool: Spool | ObjectSpool,
        receiver: Receiver,
        options: SourceOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.spool, self._receiver, self._options, self._clock = spool, receiver, options, clock
        self.lock = threading.RLock()
        self._known = Known(spool.ids, options.dedup_max_rows) if options.dedup else None
        self._queue: deque[Message] = deque()
        self._wake, self._news = threading.Event(), threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._paused = False
        self._failures = 0
        self._error: BaseException | None = None
        #: Number of the last segment that a batch has.
        self.handed = spool.meta.committed
        self.stored = 0
        self._horizon = Horizon()
        self.backlog_seen = clock.now()
        self._has_backlog = False

    def start(self) -> None:
        """Load the index of known messages and begin to receive."""
        self._load_known()
        self._thread = threading.Thread(target=self._run, name="gnsq_lite-spool", daemon=True)
        self._thread.start()
        self._receiver.start(self._take)

    def expect(self, until_ns: int) -> None:
        """Treat messages published up to this time as AvailableNow's backlog; 0: none."""
        self._horizon, self.backlog_seen = Horizon(until_ns), self._clock.now()

    def _load_known(self) -> None:
        if self._known is not None:
            self.spool.indexed = self._known.open()
            self._known.load(self.spool.stored(self.spool.indexed))
        if self.spool.kept():
            self._index()
        self.spool.sweep()

    def _tidy(self) -> None:
        """Remove what is committed; its keys go to the index first, where they are worth a file."""
        kept = self.spool.kept()
        many = len(kept) > KEPT_SEGMENTS or sum(kept) > KEPT_BYTES
        if self._known is not None and (self._known.is_due or many):
            self._index()
        self.spool.sweep()

    def _index(self) -> None:
        if self._known is None:
            return
        try:
            self._known.flush(self.spool.newest)
        except OSError as error:  # its rows stay in memory; a disk that is full gets room by what is committed
            log.warning("spool %s: the index of known messages cannot be written: %s", self.spool.directory, error)
            self.spool.make_room()
        else:
            self.spool.indexed = self.spool.newest

    def _take(self, messages: list[Message]) -> None:
        """In the I/O thread."""
        self._queue.extend(messages)
        if self._error is not None:
            self._give_back()
        elif not self._wake.is_set():
            self._wake.set()

    # -- the thread

    def _run(self) -> None:
        try:
            self._collect()
        except Exception as error:
            log.exception("the spool %s failed for good", self.spool.directory)
            self._error = error
            self._receiver.pause()  # the query may hear of it in an hour, when its batch is done
            self._give_back()

    def _give_back(self) -> None:
        """Send back what waits; in any thread."""
        with suppress(IndexError):
            while True:
                send_back([self._queue.popleft()])

    def _collect(self) -> None:
        while True:
            self._wake.wait(0.2)
            self._wake.clear()
            self._gather()
            while self._queue:
                self._has_backlog = True  # until it is known
                messages = take_some(self._queue, MOST_AT_ONCE, SEGMENT_BYTES)
                try:
                    self._store(messages)
                except Exception:
                    send_back(messages)
                    raise
                if self._has_backlog:
                    self._has_backlog, self.backlog_seen = False, self._clock.now()
            if self._stopping.is_set():
                return
            self.relieve()

    def _gather(self) -> None:
        """Where a write is dear, wait a moment for more to write at once; not for more than nsqd sends unanswered."""
        deadline = self._clock.now() + self.spool.linger
        enough = max(1, self._options.max_in_flight // 2)
        while self._queue and len(self._queue) < enough and self._clock.now() < deadline:
            if self._stopping.wait(0.005):
                return

    def _store(self, messages: list[Message]) -> None:
        self._note_backlog(messages)
        lanes = self._lanes(messages)
        with self.lock:
            try:
                self.spool.append(lanes)
            except OSError as error:
                self._refused(error, messages)
                return
            self._failures = 0
            if self._known is not None:
                for partition, batch in lanes:
                    self._known.add(partition, batch)
                if self._known.is_due or self.spool.newest - (self.spool.indexed or 0) >= UNINDEXED:
                    self._index()
            self.stored += len(messages)
        self._news.set()
        finish_all(messages)
        if not self._paused and self.waiting_bytes() > self._options.max_spool_bytes:
            log.info(
                "spool %s: %d bytes wait for a batch; receiving pauses", self.spool.directory, self.waiting_bytes()
            )
            self._paused = True
            self._receiver.pause()

    def _lanes(self, messages: list[Message]) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows to store per topic partition, in order, without those that are stored already."""
        youzan = self._options.include_youzan
        lanes: dict[int, list[Message]] = {}
        if messages[0].partition is None:
            lanes[-1] = messages
        else:
            for message in messages:
                lanes.setdefault(-1 if message.partition is None else message.partition, []).append(message)
        batches = [(partition, schema.to_batch(lane, youzan)) for partition, lane in lanes.items()]
        if self._known is None:
            return batches
        with self.lock:
            fresh = [(partition, self._known.fresh(partition, batch)) for partition, batch in batches]
        return [(partition, batch) for partition, batch in fresh if batch.num_rows]

    def _note_backlog(self, messages: Sequence[Message]) -> None:
        horizon, now_ns = self._horizon, int(self._clock.wall() * 1e9)
        self._has_backlog = bool(horizon) and any(
            horizon.takes(message.nsqd_address, message.timestamp_ns, now_ns) for message in messages
        )
        if self._has_backlog:
            self.backlog_seen = self._clock.now()

    def holds_backlog(self) -> bool:
        """Whether messages of the backlog are here and not stored yet; a slow disk is no silence."""
        if self._has_backlog:
            return True
        try:
            first = self._queue[0]
        except IndexError:
            return False
        return self._horizon.covers(first.nsqd_address, first.timestamp_ns)

    def _refused(self, error: OSError, messages: list[Message]) -> None:
        """The disk is full, or the like: nothing was stored, so nothing is finished; nsqd keeps the messages."""
        self._failures += 1
        log.warning("spool %s refuses writes (%d in a row): %s", self.spool.directory, self._failures, error)
        send_back(messages)
        if self.spool.make_room():
            return
        if self._failures >= MOST_FAILURES:
            raise SpoolFailed(
                f"spool {self.spool.directory} refuses writes: {error}; nothing is lost, the messages stay in nsqd"
            ) from error
        self._receiver.pause()
        self._stopping.wait(0.1 * 2**self._failures)
        if not self._paused:
            self._receiver.resume()

    # -- for the query

    def commit(self, number: int) -> None:
        """Note that Spark needs the segments up to *number* no more."""
        with self.lock:
            try:
                self.spool.commit(number)
            except OSError as error:
                if not self.spool.make_room():
                    why = f"spool {self.spool.directory}: what is committed cannot be noted: {error}"
                    raise SpoolFailed(why) from error
                self.spool.commit(number)
            self._tidy()

    def check(self) -> None:
        """Raise what ended collecting, if anything did."""
        if self._error is not None:
            raise self._error
        self._receiver.check()

    def is_connected(self) -> bool:
        """Whether some nsqd is subscribed to."""
        return self._receiver.is_connected()

    def missing(self) -> list[str]:
        """Return the nsqds that are known of and not subscribed to."""
        return self._receiver.missing()

    def in_flight(self) -> int:
        """Return how many messages are here that are not stored yet."""
        return len(self._queue)

    def is_paused(self) -> bool:
        """Whether receiving waits for room in the spool."""
        return self._paused

    def not_connected(self, seconds: float) -> ConnectError:
        """Return the error for nsqds that were away for *seconds*, with what is known of the reason."""
        options, missing = self._options, self.missing()
        where = ", ".join(missing or options.nsqd_tcp_addresses or options.lookupd_http_addresses)
        known = self._receiver.trouble()
        why = f"no nsqd with topic {options.topic} within {seconds:g} s" + (f" ({known})" if known else "")
        if self.is_connected():
            why += "; the backlog of others was read, set onMissingNsqd=warn to do with that"
        return ConnectError(where, why)

    def waiting_bytes(self) -> int:
        """Bytes no batch has yet.  Never the uncommitted ones: a commit comes only with the next batch."""
        with self.lock:
            return self.spool.bytes_after(self.handed)

    def wait_for_rows(self, after: int, seconds: float) -> None:
        """Wait until there are rows above segment *after*, or *seconds* are over."""
        self._news.clear()
        with self.lock:
            some = self.spool.rows_after(after)
        if not some:
            self._news.wait(seconds)

    def hand_over(self, number: int) -> None:
        """Note that a batch has the segments up to *number*."""
        self.handed = max(self.handed, number)
        self._wake.set()

    def relieve(self) -> None:
        """Receive again once there is room."""
        if self._paused and self.waiting_bytes() <= 0.8 * self._options.max_spool_bytes:
            self._paused = False
            self._receiver.resume()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop receiving, store and finish what is here, and close the spool; nothing stays in flight."""
        self._receiver.stop(timeout)
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        with self.lock:
            self.spool.close()
