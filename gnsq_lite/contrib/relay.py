"""The relay of an outbox: publishes what is stored, in a thread or a program; a lock elects one relay of many."""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.contrib.outbox import Outbox, Row, Source, Table
from gnsq_lite.errors import (
    ClosedError,
    NSQConnectionError,
    NSQError,
    OptionError,
    PartitionUnavailable,
    PublishError,
)
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.worker import Middleware, Worker
from gnsq_lite.writer import Writer

__all__ = ["Relay", "RelayInWorker", "relay_all", "relay_until"]

log = logging.getLogger("gnsq_lite.outbox")

#: Messages of one turn of the relay, and seconds between two looks at an empty outbox.
BATCH, INTERVAL = 100, 0.5
#: Seconds until a message that nsqd refused is tried again: this, twice this, ... up to the second.
_RETRY, _LONGEST_RETRY = 1.0, 300.0
#: Seconds until the next turn after one that failed: this, twice this, ... up to the second.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
#: Seconds between two counts of the backlog.
_COUNT_EVERY = 15.0
#: Transient errors that concern every message: nsqd is unreachable, or the outcome is unknown.
_TRANSIENT = (PublishError, NSQConnectionError, ClosedError)


class Relay:
    """Publishes the messages of one outbox."""

    def __init__(self, source: Source, writer: Writer, batch: int = BATCH, clock: Clock = SYSTEM_CLOCK) -> None:
        self.source, self._writer, self._batch, self._clock = source, writer, batch, clock
        #: Whether this Writer's nsqd has keys.
        self._takes_keys = True
        self._failed, self._count_at = 0, 0.0
        #: Messages that should have been published, and seconds that the oldest is late; None: not counted yet.
        self.backlog: tuple[int, float] | None = None

    def turn(self) -> bool:
        """Publish at most one batch; return whether messages were published, and more may be there.

        The lock keeps other relays out until the published rows are deleted and that is committed.  Where this process
        ends in between, the database releases the lock, and the next relay publishes these messages again.

        Raises:
            NSQError: nsqd cannot be reached; what was published before is deleted.
            Exception: the database's.
        """
        now = self._clock.wall()
        with self.source.begin() as table:
            if not table.is_due(now):  # then no other relay is locked out
                return False
        with self.source.begin() as table:
            if not table.lock():
                return False
            done: list[int] = []
            problem = self._publish(table, table.due(now, self._batch), done)
            table.delete(done)
        if problem is not None:
            raise problem
        return bool(done)

    def step(self, interval: float) -> float:
        """Take a turn, log its error, and return the seconds until the next one: *interval* where nothing is left."""
        try:
            if self._clock.now() >= self._count_at:
                self._count_at = self._clock.now() + _COUNT_EVERY
                with self.source.begin() as table:
                    self.backlog = table.backlog(self._clock.wall())
            more = self.turn()
        except Exception as error:  # the database's classes are its driver's
            pause = min(_PAUSE * 2.0 ** min(self._failed, 16), _LONGEST_PAUSE)
            self._failed += 1
            level = logging.WARNING if self._failed == 1 else logging.DEBUG
            said = "the outbox %r is not relayed for now: %s: %s"
            log.log(level, said, self.source.name, type(error).__name__, error)
            return pause
        if self._failed:
            self._failed = 0
            log.info("the outbox %r is relayed again", self.source.name)
        return 0.0 if more else interval

    def _publish(self, table: Table, rows: Sequence[Row], done: list[int]) -> NSQError | None:
        """Publish *rows*, and add the ids of the published ones to *done*; return why no more can be published now."""
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        problem: NSQError | None = None
        for topic, some in by_topic.items():
            try:
                if not self._all_at_once(topic, some, done):
                    self._one_by_one(table, some, done)
            except PartitionUnavailable as error:  # of that topic alone
                problem = error
            except _TRANSIENT as error:
                return error
        return problem

    def _all_at_once(self, topic: str, rows: Sequence[Row], done: list[int]) -> bool:
        """Publish *rows* as a batch, where that can be done and nsqd takes it."""
        if len(rows) < 2 or any(row.options or (row.key and self._takes_keys) for row in rows):
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
        if row.key and self._takes_keys and "key" not in row.options:
            try:
                self._writer.publish(row.topic, row.body, key=row.key, **row.options)
                return
            except OptionError as error:
                if error.name != "key":
                    raise
                self._takes_keys = False  # plain NSQ has no partitions to choose from
        self._writer.publish(row.topic, row.body, **row.options)

    def _refused(self, table: Table, row: Row, error: Exception) -> None:
        """Have a message tried again later, however often it was refused."""
        pause = min(_RETRY * 2.0 ** min(row.failures, 16), _LONGEST_RETRY)
        why = f"{type(error).__name__}: {error}"[:1000]
        table.refuse(row, why, self._clock.wall() + pause)
        said = "message %d of the outbox %r cannot be published to %s; it is tried again in %g s: %s"
        log.error(said, row.id, self.source.name, row.topic, pause, why, extra={"topic": row.topic})


def relay_until(wait: Callable[[float], bool], relay: Relay, interval: float = INTERVAL) -> None:
    """Relay until *wait*, which is called with seconds and waits that long, returns True; no error ends it."""
    try:
        while not wait(relay.step(interval)):
            pass
    finally:
        relay.source.close()


def relay_all(sources: Sequence[Source], writer: Writer, interval: float = INTERVAL, *, once: bool = False) -> None:
    """Relay in this process, from its main thread, until SIGTERM or SIGINT; with *once* until nothing is published.

    Raises NSQError and the database's errors with *once*; otherwise they are logged, and the turn is repeated.
    """
    relays = [Relay(source, writer) for source in sources]
    if once:
        for relay in relays:
            while relay.turn():
                pass
        return
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    threads = [threading.Thread(target=relay_until, args=(over.wait, each, interval)) for each in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class RelayInWorker(Middleware[Any]):
    """Relays outboxes while a Worker runs, in a thread for each; of several processes one relays at a time::

        worker = Worker(middleware=[RelayInWorker(outbox)])

    Args:
        interval: Seconds between two looks at an outbox that was empty.
        writer: Returns the Writer; None: the Worker's.
    """

    def __init__(
        self, *outboxes: Outbox | Source, interval: float = INTERVAL, writer: Callable[[], Writer] | None = None
    ) -> None:
        self._sources = [each.source() if isinstance(each, Outbox) else each for each in outboxes]
        self._interval, self._writer, self._over = interval, writer, Completion()
        self._threads: list[threading.Thread] = []
        #: The relays, once the Worker has started.
        self.relays: list[Relay] = []

    def started(self, worker: Worker) -> None:
        """Start the threads."""
        writer = worker.writer() if self._writer is None else self._writer()
        for source in self._sources:
            relay = Relay(source, writer)
            self.relays.append(relay)
            wait = functools.partial(wait_any, [worker.stages.drain, self._over])
            run = functools.partial(relay_until, wait, relay, self._interval)
            self._threads.append(threading.Thread(target=run, name=f"nsq-outbox-{source.name}", daemon=True))
            self._threads[-1].start()

    def stopped(self, worker: Any) -> None:
        """Wait for the current batch, at most as long as a publish may take."""
        self._over.settle()
        for thread in self._threads:
            thread.join(30.0)
