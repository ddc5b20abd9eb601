"""The relay of an outbox publishes stored messages in a thread or a process.  A lock elects one of several relays."""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.contrib.outbox import Outbox, Row, Source, Table
from gnsq_lite.contrib.outbox_schedules import Scheduler
from gnsq_lite.errors import (
    ClosedError,
    NSQConnectionError,
    NSQError,
    OptionError,
    PartitionUnavailable,
    PublishError,
)
from gnsq_lite.net.signals import Stages
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.worker import Middleware, Worker
from gnsq_lite.writer import Writer

__all__ = ["Relay", "RelayInWorker", "relay_all", "relay_until"]

log = logging.getLogger("gnsq_lite.outbox")

#: Maximum number of messages in one batch, and seconds between two polls of an empty outbox.
BATCH, INTERVAL = 100, 0.5
#: First and longest delay, in seconds, until a refused message is retried.  Each refusal doubles the delay.
_RETRY, _LONGEST_RETRY = 1.0, 300.0
#: First and longest delay, in seconds, after a failed batch.  Each failed batch doubles the delay.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
#: Seconds between two counts of the backlog.
_COUNT_EVERY = 15.0
#: Transient errors (nsqd is unreachable, or the outcome is unknown).  The publishes of later messages would fail too.
_TRANSIENT = (PublishError, NSQConnectionError, ClosedError)


class Relay:
    """Publishes the messages of one outbox, and stores those of its schedules, unless *schedules* is false."""

    def __init__(
        self,
        source: Source,
        writer: Writer,
        batch: int = BATCH,
        clock: Clock = SYSTEM_CLOCK,
        *,
        schedules: bool = True,
    ) -> None:
        self.source, self._writer, self._batch, self._clock = source, writer, batch, clock
        self.scheduler = Scheduler(source.schedules if schedules else (), source.begin, clock)
        #: Whether the Writer accepts keys, as with Youzan's NSQ.  It is True until the Writer refuses a key.
        self._accepts_keys = True
        self._failed, self._count_at = 0, 0.0
        #: Number of overdue messages, seconds by which the oldest is overdue, and number of refused messages, or None
        #: before the first count.
        self.backlog: tuple[int, float, int] | None = None

    def publish_batch(self) -> bool:
        """Publish at most one batch.  Return False if no message was due, or if another relay has the lock.

        The lock excludes other relays until the deletion of the published rows is committed.  If this process ends
        before the commit, the database releases the lock, and the next relay publishes these messages again.

        Raises:
            NSQError: nsqd is unreachable.  Messages that were published before the error are deleted.
            Exception: an error of the database.
        """
        now = self._clock.wall()
        with self.source.begin() as table:
            if not table.is_due(now):  # checked without the lock, which would exclude other relays
                return False
        with self.source.begin() as table:
            if not table.lock():
                return False
            rows, done = table.due(now, self._batch), list[int]()
            problem = self._publish(table, rows, done)
            table.delete(done)
        if problem is not None:
            raise problem
        return bool(rows)

    def step(self, interval: float) -> float:
        """Store what is scheduled, publish a batch, and log errors.

        Return the pause: 0 after a batch, *interval*, or more after errors.
        """
        self.scheduler.step()
        try:
            if self._clock.now() >= self._count_at:
                self._count_at = self._clock.now() + _COUNT_EVERY
                with self.source.begin() as table:
                    self.backlog = table.backlog(self._clock.wall())
            more = self.publish_batch()
        except Exception as error:  # each database driver has its own exception classes
            pause = min(_PAUSE * 2.0 ** min(self._failed, 16), _LONGEST_PAUSE)
            self._failed += 1
            level = logging.WARNING if self._failed == 1 else logging.DEBUG
            text = "cannot relay the outbox %r; retrying: %s: %s"
            log.log(level, text, self.source.name, type(error).__name__, error)
            return pause
        if self._failed:
            self._failed = 0
            log.info("the outbox %r is relayed again", self.source.name)
        return 0.0 if more else interval

    def _publish(self, table: Table, rows: Sequence[Row], done: list[int]) -> NSQError | None:
        """Publish *rows*, and add the ids of published rows to *done*.  Return the last transient error."""
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        problem: NSQError | None = None
        for topic, topic_rows in by_topic.items():
            try:
                if not self._all_at_once(topic, topic_rows, done):
                    self._one_by_one(table, topic_rows, done)
            except PartitionUnavailable as error:  # the other topics may have a leader
                problem = error
            except _TRANSIENT as error:
                return error
        return problem

    def _all_at_once(self, topic: str, rows: Sequence[Row], done: list[int]) -> bool:
        """Publish *rows* with one MPUB.  Return False if options, keys or nsqd's refusal require single publishes."""
        if len(rows) < 2 or any(row.fault or row.options or (row.key and self._accepts_keys) for row in rows):
            return False
        try:
            self._writer.multipublish(topic, [row.body for row in rows])
        except _TRANSIENT:
            raise
        except NSQError:
            return False  # publishing one by one shows which message nsqd refuses
        done += [row.id for row in rows]
        return True

    def _one_by_one(self, table: Table, rows: Sequence[Row], done: list[int]) -> None:
        stopped: set[str] = set()
        for row in rows:
            if row.key and row.key in stopped:
                continue
            try:
                self._publish_one(row)
            except _TRANSIENT:
                raise
            except (NSQError, TypeError, ValueError) as error:
                stopped.add(row.key)
                self._refused(table, row, error)
            else:
                done.append(row.id)

    def _publish_one(self, row: Row) -> None:
        if row.fault is not None:
            raise row.fault
        if row.key and self._accepts_keys and "key" not in row.options:
            try:
                self._writer.publish(row.topic, row.body, key=row.key, **row.options)
                return
            except OptionError as error:
                if error.name != "key":
                    raise
                self._accepts_keys = False  # plain NSQ has no partitions, so its Writer refuses a key
        self._writer.publish(row.topic, row.body, **row.options)

    def _refused(self, table: Table, row: Row, error: Exception) -> None:
        """Schedule the next attempt for a refused message or an invalid row.  The number of attempts is unlimited."""
        pause = min(_RETRY * 2.0 ** max(0, min(row.failures, 16)), _LONGEST_RETRY)
        why = f"{type(error).__name__}: {error}"[:1000]
        table.refuse(row, why, self._clock.wall() + pause)
        text = "cannot publish message %d of the outbox %r to %s; retrying in %g s: %s"
        log.error(text, row.id, self.source.name, row.topic, pause, why, extra={"topic": row.topic})


def relay_until(wait: Callable[[float], bool], relay: Relay, interval: float = INTERVAL) -> None:
    """Relay until *wait* returns True, and log errors.  The argument of *wait* is the number of seconds to wait."""
    try:
        while not wait(relay.step(interval)):
            pass
    finally:
        relay.source.close()


def relay_all(sources: Sequence[Source], writer: Writer, interval: float = INTERVAL, *, once: bool = False) -> None:
    """Relay until SIGTERM or SIGINT, or with *once* until no message is due.  Call this in the main thread.

    With *once*, this raises NSQError and the database's errors.  Otherwise this method logs each error and retries.
    """
    relays = [Relay(source, writer) for source in sources]
    if once:
        for relay in relays:
            relay.scheduler.step()
            while relay.publish_batch():
                pass
        return
    stages = Stages()
    wait = functools.partial(wait_any, [stages.drain])
    threads = [threading.Thread(target=relay_until, args=(wait, each, interval)) for each in relays]
    with stages.installed((number, stages.begin_drain) for number in (signal.SIGTERM, signal.SIGINT)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class RelayInWorker(Middleware[Any]):
    """Worker middleware that relays each outbox in a thread.  Only one process at a time relays an outbox::

        worker = Worker(middleware=[RelayInWorker(outbox)])

    Args:
        interval: Seconds between two polls of an empty outbox.
        writer: Function that returns the Writer.  The default is the Worker's Writer.
    """

    def __init__(
        self, *outboxes: Outbox | Source, interval: float = INTERVAL, writer: Callable[[], Writer] | None = None
    ) -> None:
        self._sources = [each.source() if isinstance(each, Outbox) else each for each in outboxes]
        self._interval, self._writer, self._over = interval, writer, Completion()
        self._threads: list[threading.Thread] = []
        #: The relays.  The list is empty until the Worker has started.
        self.relays: list[Relay] = []

    def started(self, worker: Worker) -> None:
        """Start a relay thread for each outbox."""
        writer = worker.writer() if self._writer is None else self._writer()
        self._over, self._threads, self.relays = Completion(), [], []  # a copy of the Worker may have run before
        for source in self._sources:
            relay = Relay(source, writer, schedules=not worker.no_schedules)
            self.relays.append(relay)
            wait = functools.partial(wait_any, [worker.stages.drain, self._over])
            run = functools.partial(relay_until, wait, relay, self._interval)
            self._threads.append(threading.Thread(target=run, name=f"nsq-outbox-{source.name}", daemon=True))
            self._threads[-1].start()

    def stopped(self, worker: Any) -> None:
        """Wait for the current batch, at most 30 seconds for each outbox."""
        self._over.settle()
        for thread in self._threads:
            thread.join(30.0)
