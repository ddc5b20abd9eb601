"""The recorder stores received messages durably in a log, and then finishes (FIN) the messages.

The Reader's I/O thread appends received messages to a queue, and continues to read.  The recorder's thread stores the
queued messages with one write, waits for the disk or the store, and sends the FINs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from gnsq_lite.arrow import to_batch
from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.consume.rows import count_rows
from gnsq_lite.errors import ConnectError
from gnsq_lite.message import Message, finish_all, send_back
from gnsq_lite.recording import lease
from gnsq_lite.recording.backlog import BacklogCutoff
from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.known import DedupIndex
from gnsq_lite.recording.logs import LogReader, LogWriter, PartitionRows
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.receiver import Receiver, oldest_of, size_of, take_some

log = logging.getLogger("gnsq_lite.recording")

#: Maximum number of messages and maximum bytes of bodies in one write.
MOST_AT_ONCE, MOST_BYTES = 10_000, 16 << 20
#: The index of known messages is written when it lacks this many rows, because a starting recorder reads these rows.
UNINDEXED = 1_000_000
#: Time limits in seconds of a graceful stop, 8 s together: close the Readers and store the queued messages, and then
#: close the log, even if the first step took all its time.
STOP_TIMEOUT, CLOSE_LOG = 7.0, 1.0


class Recorder:
    """Records a channel into a log.  Other threads must hold :attr:`lock` while they use the log."""

    def __init__(
        self,
        writer: LogWriter,
        reader: LogReader,
        receiver: Receiver,
        options: RecorderOptions,
        *,
        make_room: Callable[[], int] = lambda: 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.log, self._reader, self._receiver, self._options, self._clock = writer, reader, receiver, options, clock
        self._make_room = make_room
        #: Called before the log is closed.
        self.before_close: Callable[[], None] = lambda: None
        self.lock = threading.RLock()
        self._known = DedupIndex(writer.ids, options.dedup_rows) if options.dedup_rows else None
        #: Number of the last row whose key is in the index of known messages.
        self.indexed = 0
        self._queue: deque[Message] = deque()  # of messages and Rows
        self._wake, self._news = threading.Event(), threading.Event()
        #: Whether stop() closes the log, although the thread may have unstored messages.
        self._closes_log = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._paused = False
        self._refused_since: float | None = None
        self._refusal = ""
        self._error: BaseException | None = None
        #: Number of the last row that the owning query has put into a batch, and (last row, bytes) of each later write.
        self.taken = 0
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self.stored = self.stored_bytes = 0
        self.flush_seconds = 0.0
        self._cutoff = BacklogCutoff()
        self.backlog_seen = clock.now()
        self._has_backlog = False

    def start(self, taken: int | None = None) -> None:
        """Load the index of known messages, and start to receive.  Raises RecordingError, OSError.

        *taken* is the number of the last row that the owning query has put into a batch.  None means all rows.
        """
        bounds = self._reader.bounds()
        self.taken = self.log.last if taken is None else taken
        if self._options.max_waiting is not None and self.taken < bounds.last:
            pieces = self._reader.pieces(max(self.taken, bounds.first - 1), bounds.last)
            self._waiting.extend((piece.last, piece.size) for piece in pieces)
            self._waiting_bytes = sum(size for _, size in self._waiting)
        if self._known is not None:
            self.indexed = min(self._known.open(), self.log.last)
            begin = max(self.indexed, bounds.first - 1)
            stored = self._reader.read(self._reader.span(begin, bounds.last))
            self._known.load((frame.partition, batch) for frame, batch in stored)
        self._thread = threading.Thread(target=self._run, name="gnsq_lite-record", daemon=True)
        self._thread.start()
        self._receiver.start(self._take)

    def expect(self, until_ns: int) -> None:
        """Treat messages published until *until_ns*, nanoseconds since 1970, as the backlog.  0 means no backlog."""
        self._cutoff, self.backlog_seen = BacklogCutoff(until_ns), self._clock.now()

    def _take(self, message: Message) -> None:
        """Queue received messages for the recorder's thread.  Runs in the I/O thread."""
        self._queue.append(message)
        if self._error is not None:
            self._give_back()
        elif not self._wake.is_set():
            self._wake.set()

    # -- the thread

    def _run(self) -> None:
        try:
            self._record()
        except Exception as error:
            log.exception("log %s: recording ended", self.log.name)
            self._error = error
            self._receiver.pause()  # the caller may call stop() an hour later
            self._give_back()
            self._news.set()

    def _give_back(self) -> None:
        """Requeue (REQ) the queued messages.  Thread-safe."""
        with suppress(IndexError):
            while True:
                send_back([self._queue.popleft()])

    def _record(self) -> None:
        while True:
            self._wake.wait(0.2)
            self._wake.clear()
            self._gather()
            while self._queue:
                self._has_backlog = True  # assumed until _store() has checked the messages
                messages = take_some(self._queue, MOST_AT_ONCE, MOST_BYTES)
                try:
                    if self._closes_log:  # stop() waits for the lock, and must not wait for further writes
                        raise RecordingError(f"log {self.log.name} is closed; the messages stay in nsqd")
                    self._store(messages)
                except Exception:
                    send_back(messages)
                    raise
                if self._has_backlog:
                    self._has_backlog, self.backlog_seen = False, self._clock.now()
            if self._stopping.is_set():
                return
            self.resume_if_room()

    def _gather(self) -> None:
        """Gather messages until ``linger`` seconds pass, half of max_in_flight are queued, or the recorder stops."""
        deadline = self._clock.now() + self.log.linger
        enough = max(1, self._options.max_in_flight // 2)
        while 0 < self.in_flight() < enough and self._clock.now() < deadline:
            if self._stopping.wait(min(0.005, self.log.linger)):
                return

    def _store(self, messages: list[Message]) -> None:
        self._note_backlog(messages)
        batches = self._new_rows(messages)
        begun = self._clock.now()
        if batches:
            try:
                with self.lock:
                    self._note_stored(batches, self.log.append(batches))
            except OSError as error:
                self._refused(error, messages)
                return
            self._refused_since, self._refusal = None, ""
        self.flush_seconds += self._clock.now() - begun
        self._news.set()
        finish_all(messages)
        if not self._paused and self._is_full():
            log.info("log %s: receiving pauses: %d bytes are in no batch", self.log.name, self.waiting_bytes())
            self._paused = True
            self._receiver.pause()

    def _note_stored(self, batches: list[PartitionRows], size: int) -> None:
        self.stored += sum(batch.num_rows for _, batch in batches)
        self.stored_bytes += size
        if self._options.max_waiting is not None:
            self._waiting.append((self.log.last, size))
            self._waiting_bytes += size
        if self._known is not None:
            for partition, batch in batches:
                self._known.add(partition, batch)
            if self._known.is_due or self.log.last - self.indexed >= UNINDEXED:
                self.index()

    def index(self) -> None:
        """Write the keys of the newest rows to the index.  Rows up to :attr:`indexed` may then be removed."""
        with self.lock:
            if self._known is None:
                self.indexed = self.log.last
                return
            try:
                self._known.flush(self.log.last)
            except OSError as error:  # the keys stay in memory until a later flush
                log.warning("log %s: the index of known messages cannot be written: %s", self.log.name, error)
                self._make_room()
            else:
                self.indexed = self.log.last

    def _new_rows(self, messages: list[Message]) -> list[PartitionRows]:
        """Return one batch of rows for each topic partition, in order, without rows that are already stored."""
        youzan = self._options.include_youzan
        groups: dict[int, list[Message]] = {}
        if messages[0].partition is None:
            groups[-1] = messages
        else:
            for message in messages:
                groups.setdefault(-1 if message.partition is None else message.partition, []).append(message)
        batches = [(partition, to_batch(group, youzan)) for partition, group in groups.items()]
        if self._known is None:
            return batches
        with self.lock:
            fresh = [(partition, self._known.fresh(partition, batch)) for partition, batch in batches]
        return [(partition, batch) for partition, batch in fresh if batch.num_rows]

    def _note_backlog(self, messages: Sequence[Message]) -> None:
        cutoff, now_ns = self._cutoff, int(self._clock.wall() * 1e9)
        self._has_backlog = bool(cutoff) and any(
            cutoff.takes(message.nsqd_address, published_ns, now_ns)
            for message in messages
            for published_ns in (oldest_of(message), message.timestamp_ns)
        )
        if self._has_backlog:
            self.backlog_seen = self._clock.now()

    def holds_backlog(self) -> bool:
        """Return whether received messages of the backlog are not stored yet."""
        if self._has_backlog:
            return True
        try:
            first = self._queue[0]
        except IndexError:
            return False
        return self._cutoff.covers(first.nsqd_address, oldest_of(first))

    def _refused(self, error: OSError, messages: list[Message]) -> None:
        """Requeue *messages* after a failed write.  If no row can be removed, pause until the log has room.

        Raises RecordingError if writes fail for lease.PATIENCE seconds.
        """
        send_back(messages)
        now = self._clock.now()
        self._refused_since = now if self._refused_since is None else self._refused_since
        self._refusal = str(error)
        log.warning("log %s refuses writes: %s", self.log.name, error)
        if self._make_room():
            return
        self._receiver.pause()
        size = sum(map(size_of, messages))
        while not self._stopping.wait(1.0):
            self._give_back()  # messages that nsqd sent before it received RDY 0
            if self._clock.now() - self._refused_since >= lease.PATIENCE:
                raise RecordingError(
                    f"log {self.log.name} refuses writes: {error}; no row is lost, the messages stay in nsqd"
                ) from error
            with suppress(OSError):
                self.log.probe(size)
                break
        if not self._paused and not self._stopping.is_set():
            self._receiver.resume()

    # -- for callers

    def check(self) -> None:
        """Raise the error that ended the recorder, if any."""
        if self._error is not None:
            raise self._error
        self._receiver.check()

    def is_connected(self) -> bool:
        """Return whether the recorder is subscribed to at least one nsqd."""
        return self._receiver.is_connected()

    def missing(self) -> list[str]:
        """Return the known nsqds to which the recorder is not subscribed."""
        return self._receiver.missing()

    def trouble(self) -> str:
        """Return why the disk refuses writes or why the last connection ended, or ""."""
        return self._refusal or self._receiver.trouble()

    def lost(self) -> int:
        """Return how many subscribed connections to nsqds have ended."""
        return self._receiver.lost

    def dropped(self) -> int:
        """Return how many copies of stored messages were dropped."""
        return 0 if self._known is None else self._known.dropped

    def in_flight(self) -> int:
        """Return how many received messages are queued for a write."""
        return count_rows(self._queue.copy())

    def is_paused(self) -> bool:
        """Return whether receiving is paused because more than max_waiting bytes are in no batch."""
        return self._paused

    def not_connected(self, seconds: float) -> ConnectError:
        """Return an error about the nsqds that were unreachable for *seconds*, with the reason if it is known."""
        where = ", ".join(self.missing() or self._options.addresses)
        known = self._receiver.trouble()
        why = f"no nsqd with topic {self._options.topic} within {seconds:g} s" + (f" ({known})" if known else "")
        if self.is_connected():
            why += f"; the backlog of the other nsqds was read{self._options.missing_hint}"
        return ConnectError(where, why)

    def waiting_bytes(self) -> int:
        """Return the size in bytes of the rows that are in no batch."""
        return self._waiting_bytes

    def _is_full(self) -> bool:
        most = self._options.max_waiting
        return most is not None and self.waiting_bytes() > most

    def wait_for_rows(self, after: int, seconds: float) -> None:
        """Wait at most *seconds* for a row after *after*.  Return earlier if the recorder fails or drops copies."""
        self._news.clear()
        if self.log.last <= after and self._error is None:
            self._news.wait(seconds)

    def hand_over(self, row: int) -> None:
        """Record that the rows up to *row* are in a batch."""
        with self.lock:
            self.taken = max(self.taken, row)
            while self._waiting and self._waiting[0][0] <= self.taken:
                self._waiting_bytes -= self._waiting.popleft()[1]
        self._wake.set()

    def resume_if_room(self) -> None:
        """Resume receiving if at most 80% of max_waiting bytes are in no batch."""
        if self._paused and self.waiting_bytes() <= 0.8 * (self._options.max_waiting or 0):
            self._paused = False
            self._receiver.resume()

    def stop(self, timeout: float = STOP_TIMEOUT) -> bool:
        """Stop receiving, store and finish the received messages, and close the log.

        Return False if the recorder's thread still writes after *timeout* seconds in total.  The log accepts no more
        writes, and the thread requeues the messages that are not stored.  If a store does not answer, the log is closed
        in the background, and its lease expires if the process exits first.
        """
        deadline = self._clock.now() + timeout
        self._receiver.stop(timeout)
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - self._clock.now()))
        has_ended = self._thread is None or not self._thread.is_alive()
        self._closes_log = True
        closing = threading.Thread(target=self._close_log, name="gnsq_lite-close", daemon=True)
        closing.start()
        closing.join(max(CLOSE_LOG, deadline - self._clock.now()))
        if not has_ended:
            said = "log %s: closed after %g s, before all received messages were stored; nsqd sends the others again"
            log.warning(said, self.log.name, timeout)
        elif closing.is_alive():
            log.warning("log %s: not closed within %g s: the store or a seal takes longer", self.log.name, timeout)
        return has_ended and not closing.is_alive()

    def _close_log(self) -> None:
        self.before_close()
        with self.lock:
            self.log.close()
