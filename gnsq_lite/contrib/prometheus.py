"""Metrics for Prometheus, read from ``stats()`` at each scrape.  Needs the extra ``prometheus``.

::

    from prometheus_client import REGISTRY
    from gnsq_lite.contrib.prometheus import Collector, HandlerSeconds, PublishSeconds

    collector = Collector(worker)             # Readers, Writers, Workers
    REGISTRY.register(collector)
    worker.middleware.append(HandlerSeconds())  # only this and PublishSeconds cost time per message
    writer = Writer("127.0.0.1:4150", middleware=[PublishSeconds()])

A Collector costs no time per message, because it reads the counters of Readers and Writers.  Each worker process has
separate metrics.  ``gnsq-lite worker --metrics-port`` merges the metrics of all processes and adds a label ``process``.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from gnsq_lite.contrib.relay import RelayInWorker
from gnsq_lite.errors import ClosedError, MissingExtra
from gnsq_lite.publish.middleware import PublishCall, PublishMiddleware
from gnsq_lite.reader import Reader
from gnsq_lite.stats import ConnectionStats, ReaderStats, WriterStats, families, metrics
from gnsq_lite.worker import Handler, Middleware, Worker
from gnsq_lite.writer import Writer

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.prometheus", "prometheus", "prometheus-client") from missing

__all__ = ["BUCKETS", "REGISTRY", "Collector", "HandlerSeconds", "PublishSeconds", "page", "show"]

#: Time limit of an I/O loop's response in seconds.  After this time a scrape shows the last state, and gnsq_loop_up 0.
TIMEOUT = 2.0

#: Upper bounds of the buckets in seconds.  The highest exceeds nsqd's default message timeout.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

#: Upper bounds of the buckets of message ages: 1, 2, 5, 10, 30 s; 1, 2, 5, 10, 30 min; 1, 3, 12 h; 1, 3, 7 days.
AGES = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10_800, 43_200, 86_400, 259_200, 604_800)

_collectors: WeakSet[Collector] = WeakSet()


class Collector:
    """Collects the state of Readers, Writers and Workers.  :meth:`add` adds further objects.

    Args:
        sources: Readers, Writers and Workers.  A Worker includes its schedules, outboxes, Readers and Writers, also
            the Readers and Writers that it makes later.
        writers: Writers.  Each keyword is the value of the label ``writer``.
    """

    def __init__(self, *sources: Reader | Worker | Writer, **writers: Writer) -> None:
        self._sources: list[Reader | Worker | Writer] = list(sources)
        #: Functions that return channel depths by (nsqd, topic, channel): ``gnsq_lite.worker.depths``.
        self.depths: list[Callable[[Sequence[ReaderStats]], Mapping[tuple[str, str, str], int]]] = []
        self._writers: dict[str, Writer] = dict(writers)
        self._last: dict[Any, Any] = {}
        _collectors.add(self)

    def add(self, *sources: Reader | Worker | Writer, **writers: Writer) -> None:
        """Collect more objects.  An object that was added before is ignored."""
        self._sources += [source for source in sources if source not in self._sources]
        self._writers.update(writers)

    def describe(self) -> Iterable[Metric]:
        """Return the metric families without samples, so that registering does not wait for the I/O loop."""
        return _families().values()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        made = _families()
        for reader in self._readers():
            stats, is_up = self._stats_of(reader)
            on = [reader.topic, reader.channel]
            made["gnsq_loop_up"].add_metric(on, float(is_up))
            if stats is not None:
                _add(made, on, stats, *stats.connections)
        for name, writer in self._named_writers():
            stats, _ = self._stats_of(writer)
            if stats is not None:
                _add(made, [name], stats)
        self._add_workers(made)
        yield from made.values()

    def _add_workers(self, made: dict[str, Any]) -> None:
        """Add samples of schedules, outboxes and depths."""
        for worker in [source for source in self._sources if isinstance(source, Worker)]:
            for on, when in worker.last_runs().items():
                made["gnsq_schedule_last_run_timestamp_seconds"].add_metric(on, when)
            for each in worker.middleware:
                for relay in each.relays if isinstance(each, RelayInWorker) else ():
                    if relay.backlog is not None:
                        made["gnsq_outbox_messages"].add_metric([relay.source.name], relay.backlog[0])
                        made["gnsq_outbox_age_seconds"].add_metric([relay.source.name], relay.backlog[1])
                        made["gnsq_outbox_refused_messages"].add_metric([relay.source.name], relay.backlog[2])
        known = [stats for stats in self._last.values() if isinstance(stats, ReaderStats)]
        for look in self.depths:
            for place, depth in look(known).items():
                made["gnsq_channel_depth"].add_metric(place, depth)

    def _readers(self) -> Iterator[Reader]:
        for source in self._sources:
            if isinstance(source, Worker):
                yield from source.readers
            elif isinstance(source, Reader):
                yield source

    def _named_writers(self) -> Iterator[tuple[str, Writer]]:
        number = 0
        for source in self._sources:
            for writer in source.writers if isinstance(source, Worker) else [source]:
                if isinstance(writer, Writer):
                    yield str(number), writer
                    number += 1
        yield from self._writers.items()

    def _stats_of(self, source: Reader | Writer) -> tuple[Any, bool]:
        """Return the current or last known stats, and whether the loop responded."""
        if isinstance(source, Writer) and source.is_idle:
            return None, True  # stats() would connect the Writer
        try:
            stats = self._last[source] = source.stats(TIMEOUT)
        except (TimeoutError, ClosedError):  # the Reader is not started, or belongs to the parent process
            return self._last.get(source), False
        return stats, True


def _families() -> dict[str, Any]:
    """Make all metric families, without samples, by name."""
    found = [(name, text, ["topic", "channel", *more]) for name, (text, more) in _OF_READERS.items()]
    found += [(name, text, ["writer", *more]) for name, (text, more) in _OF_WRITERS.items()]
    return {
        name: (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, text, labels=labels)
        for name, text, labels in (*found, *_FURTHER)
    }


def _add(made: dict[str, Any], labels: list[str], *stats: ReaderStats | WriterStats | ConnectionStats) -> None:
    """Add samples.  The values of several connections to one nsqd, one for each partition, are added up."""
    sums: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for name, further, number in itertools.chain.from_iterable(map(metrics, stats)):
        sums[name, further] += number
    for (name, further), total in sums.items():
        made[name].add_metric([*labels, *further], total)


_OF_READERS, _OF_WRITERS = families(ReaderStats, ConnectionStats), families(WriterStats)
_FURTHER = (
    ("gnsq_loop_up", "1: the I/O loop responds; 0: blocked, or the Reader is not started", ["topic", "channel"]),
    ("gnsq_schedule_last_run_timestamp_seconds", "Due time of the last published message.", ["schedule", "topic"]),
    ("gnsq_outbox_messages", "Due messages of an outbox.", ["outbox"]),
    ("gnsq_outbox_age_seconds", "Seconds for which the oldest message of an outbox has been due.", ["outbox"]),
    ("gnsq_outbox_refused_messages", "Messages of an outbox that were refused: see their column error.", ["outbox"]),
    ("gnsq_channel_depth", "Depth of a channel (only with --metrics-depth).", ["nsqd", "topic", "channel"]),
)
_MESSAGE_AGE = (
    "gnsq_message_age_seconds",
    "Seconds from the publish of a message, or of the first message of a batch, to the start of the handler.",
    ("topic", "channel"),
)
_HANDLER_SECONDS = (
    "gnsq_handler_seconds",
    "Duration of a handler call for a message or a batch, in seconds.",
    ("topic", "channel", "outcome"),
)
_PUBLISH_SECONDS = (
    "gnsq_publish_seconds",
    "Duration of the publish of a message or a batch, in seconds.",
    ("topic", "outcome"),
)
_histograms: WeakKeyDictionary[CollectorRegistry, dict[str, Histogram]] = WeakKeyDictionary()


def _histogram(
    registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
) -> Histogram:
    """Return the registry's histogram *name*.  Create it only once, because a registry refuses a second histogram."""
    known = _histograms.setdefault(registry, {})
    if name not in known:
        known[name] = Histogram(name, text, labels, registry=registry, buckets=buckets)
    return known[name]


class HandlerSeconds(Middleware[Any]):
    """Times handlers in the histogram ``gnsq_handler_seconds``, by topic, channel and outcome ("ok" or "failed").

    The times include inner middleware.  The histogram ``gnsq_message_age_seconds`` has the age of the message, or of a
    batch's first message, at the start: local time minus nsqd's timestamp.  The cost is microseconds per handler call.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, buckets: Iterable[float] = BUCKETS) -> None:
        self._histogram = _histogram(registry, *_HANDLER_SECONDS, tuple(buckets))
        self._age = _histogram(registry, *_MESSAGE_AGE, AGES)

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Wrap *call* to time it."""
        ok, failed = (
            self._histogram.labels(handler.topic, handler.channel, outcome).observe for outcome in ("ok", "failed")
        )
        clock, wall, age = time.perf_counter, time.time, self._age.labels(handler.topic, handler.channel).observe

        def timed(message: Any) -> Any:
            first = message[0] if isinstance(message, list) else message
            age(max(0.0, wall() - first.timestamp_ns / 1e9))
            began = clock()
            try:
                returned = call(message)
            except BaseException:
                failed(clock() - began)
                raise
            ok(clock() - began)
            return returned

        return timed


class PublishSeconds(PublishMiddleware):
    """Times a Writer's publishes in the histogram ``gnsq_publish_seconds``, by topic and outcome ("ok", "failed")."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, buckets: Iterable[float] = BUCKETS) -> None:
        self._histogram = _histogram(registry, *_PUBLISH_SECONDS, tuple(buckets))

    def before(self, call: PublishCall) -> None:
        """Record the start time."""
        call.kept[self] = time.perf_counter()

    def after(self, call: PublishCall, error: BaseException | None) -> None:
        """Observe the duration."""
        outcome = "ok" if error is None else "failed"
        self._histogram.labels(call.topic, outcome).observe(time.perf_counter() - call.kept[self])


def show(worker: Worker, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Add *worker* to the Collector in *registry*, or register a new Collector.  Return the Collector."""
    for known in list(_collectors):
        try:
            registry.unregister(known)
        except KeyError:  # not in this registry
            continue
        registry.register(known)
        known.add(worker)
        return known
    made = Collector(worker)
    registry.register(made)
    return made


def page(registry: CollectorRegistry = REGISTRY) -> tuple[str, bytes]:
    """Return the content type and body of /metrics."""
    return CONTENT_TYPE_LATEST, generate_latest(registry)
