"""Metrics for Prometheus, read from ``stats()`` when they are scraped; needs the extra ``prometheus``.

::

    from prometheus_client import REGISTRY
    from gnsq_lite.contrib.prometheus import Collector, HandlerSeconds

    collector = Collector(worker)             # Readers, Writers, Workers
    REGISTRY.register(collector)
    worker.middleware.append(HandlerSeconds())  # the only part with work per message

Counts are kept by the library anyway, so a Collector costs nothing per message.  With several worker processes each
has metrics of its own; ``gnsq-lite worker --metrics-port`` shows them together, with a label ``process``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from gnsq_lite.errors import ClosedError, MissingExtra
from gnsq_lite.reader import Reader
from gnsq_lite.stats import ReaderStats, WriterStats
from gnsq_lite.worker import Handler, Middleware, Worker
from gnsq_lite.writer import Writer

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.prometheus", "prometheus", "prometheus-client") from missing

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnsq_lite.arguments import WriterArguments
    from gnsq_lite.keywords import Addresses

__all__ = ["BUCKETS", "REGISTRY", "Collector", "HandlerSeconds", "TimedWriter", "page", "show"]

#: Seconds an I/O loop has to answer; otherwise its last state is shown, with gnsq_loop_up 0.
TIMEOUT = 2.0

#: Upper bounds in seconds: from a quick computation to beyond nsqd's default message timeout.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

#: Name, help, labels beside topic and channel; filled in by _reader_values.
_READER_COUNTERS = (
    ("gnsq_messages_received", "Messages that came, redeliveries included.", ()),
    (
        "gnsq_messages",
        "Messages that left, by outcome: finished, requeued, expired (too late to answer), dropped (connection lost).",
        ("outcome",),
    ),
    ("gnsq_handler_failures", "Messages whose handler raised.", ()),
    ("gnsq_messages_given_up", "Messages given up after max_attempts; they count as finished too.", ()),
    ("gnsq_late_answers", "Answers that nsqd refused because the message had timed out.", ()),
    ("gnsq_reconnects", "Connections to nsqd that were made anew.", ()),
)
_READER_GAUGES = (
    ("gnsq_max_in_flight", "Messages that may be here unanswered.", ()),
    ("gnsq_in_flight", "Messages that are here unanswered.", ("nsqd",)),
    ("gnsq_ready", "RDY of each connection.", ("nsqd",)),
    ("gnsq_queued", "Messages that wait for a handler.", ()),
    ("gnsq_handlers_running", "Handlers that run.", ()),
    ("gnsq_handlers_overdue", "Handlers that run on beyond their time limit, in nobody's place.", ()),
    ("gnsq_oldest_handler_seconds", "Seconds for which the handler that has run longest has run.", ()),
    ("gnsq_connections", "Connections to nsqd.", ()),
    ("gnsq_backoff_level", "Level of backoff; 0: none.", ()),
    ("gnsq_backoff_seconds", "Seconds until backoff lets a message through.", ()),
    ("gnsq_starved", "1 where a connection has nearly as many messages here as it may.", ()),
    ("gnsq_loop_up", "1 where the I/O loop answers; 0: a handler blocks it.", ()),
)
_WRITER_COUNTERS = (
    ("gnsq_publishes", "Publishes by outcome: published, failed, or unknown.", ("outcome",)),
    ("gnsq_writer_reconnects", "Connections to nsqd that were made anew.", ()),
)
_WRITER_GAUGES = (
    ("gnsq_publishes_pending", "Publishes without an outcome yet.", ()),
    ("gnsq_writer_connections", "Connections to nsqd.", ()),
)


_collectors: WeakSet[Collector] = WeakSet()


class Collector:
    """Collects the state of Readers, Writers and Workers; more may be added later.

    Args:
        sources: A Worker stands for its Readers and Writers, those included that it has not made yet.
        writers: Writers by the name they have in the label ``writer``.
    """

    def __init__(self, *sources: Reader | Worker | Writer, **writers: Writer) -> None:
        self._sources: list[Reader | Worker | Writer] = list(sources)
        self._writers: dict[str, Writer] = dict(writers)
        self._last: dict[Any, Any] = {}
        _collectors.add(self)

    def add(self, *sources: Reader | Worker | Writer, **writers: Writer) -> None:
        """Collect these too; a second addition of the same object is ignored."""
        self._sources += [source for source in sources if source not in self._sources]
        self._writers.update(writers)

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registering does not wait for the loop."""
        return [
            *_families(_READER_COUNTERS, _READER_GAUGES, _TOPIC),
            *_families(_WRITER_COUNTERS, _WRITER_GAUGES, _WRITER),
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        readers = list(_families(_READER_COUNTERS, _READER_GAUGES, _TOPIC))
        for reader in self._readers():
            stats, is_up = self._ask(reader)
            values: Mapping[str, Any] = {"gnsq_loop_up": 0} if stats is None else _reader_values(stats, is_up)
            _add(readers, [reader.topic, reader.channel], values)
        writers = list(_families(_WRITER_COUNTERS, _WRITER_GAUGES, _WRITER))
        for name, writer in self._named_writers():
            stats, _ = self._ask(writer)
            if stats is not None:
                _add(writers, [name], _writer_values(stats))
        yield from readers
        yield from writers

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

    def _ask(self, source: Reader | Writer) -> tuple[Any, bool]:
        """Return the current stats, or the last known ones, and whether the loop answered."""
        if isinstance(source, Writer) and source.is_idle:
            return None, True  # asking would connect it
        try:
            stats = self._last[source] = source.stats(TIMEOUT)
        except (TimeoutError, ClosedError):  # not started yet, or of the process this one was forked from
            return self._last.get(source), False
        return stats, True


_TOPIC, _WRITER = ("topic", "channel"), ("writer",)


def _families(counters: Any, gauges: Any, labels: tuple[str, ...]) -> Iterator[Metric]:
    for kind, rows in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, text, more in rows:
            yield kind(name, text, labels=[*labels, *more])


def _add(families: list[Any], labels: list[str], values: Mapping[str, dict[str, float] | float]) -> None:
    for family in families:
        found = values.get(family.name, {})
        if isinstance(found, dict):
            for label, value in found.items():
                family.add_metric([*labels, label], value)
        else:
            family.add_metric(labels, found)


def _reader_values(stats: ReaderStats, is_up: bool) -> dict[str, dict[str, float] | float]:
    return {
        "gnsq_messages_received": stats.received,
        "gnsq_messages": {
            "finished": stats.finished,
            "requeued": stats.requeued,
            "expired": stats.expired,
            "dropped": stats.dropped,
        },
        "gnsq_handler_failures": stats.failures,
        "gnsq_messages_given_up": stats.given_up,
        "gnsq_late_answers": stats.late_answers,
        "gnsq_reconnects": stats.reconnects,
        "gnsq_max_in_flight": stats.max_in_flight,
        "gnsq_in_flight": _by_nsqd(stats, "in_flight"),
        "gnsq_ready": _by_nsqd(stats, "ready"),
        "gnsq_queued": stats.queued,
        "gnsq_handlers_running": stats.handlers_running,
        "gnsq_handlers_overdue": stats.handlers_overdue,
        "gnsq_oldest_handler_seconds": stats.oldest_handler,
        "gnsq_connections": len(stats.connections),
        "gnsq_backoff_level": stats.backoff_level,
        "gnsq_backoff_seconds": stats.backoff_for,
        "gnsq_starved": int(stats.starved),
        "gnsq_loop_up": int(is_up),
    }


def _by_nsqd(stats: ReaderStats, name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for connection in stats.connections:  # several, where partitions of one topic live on one nsqd
        found[connection.address] = found.get(connection.address, 0) + getattr(connection, name)
    return found


def _writer_values(stats: WriterStats) -> dict[str, dict[str, float] | float]:
    return {
        "gnsq_publishes": {"published": stats.published, "failed": stats.failed, "unknown": stats.unknown},
        "gnsq_writer_reconnects": stats.reconnects,
        "gnsq_publishes_pending": stats.pending,
        "gnsq_writer_connections": len(stats.connections),
    }


_HANDLER_SECONDS = (
    "gnsq_handler_seconds",
    "Seconds a handler took for a message, or a batch.",
    ("topic", "channel", "outcome"),
)
_PUBLISH_SECONDS = (
    "gnsq_publish_seconds",
    "Seconds until nsqd had accepted a message or a batch.",
    ("topic", "outcome"),
)
_histograms: WeakKeyDictionary[CollectorRegistry, dict[str, Histogram]] = WeakKeyDictionary()


def _histogram(
    registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
) -> Histogram:
    """Return the registry's histogram of that name, made once: a registry refuses a second one."""
    known = _histograms.setdefault(registry, {})
    if name not in known:
        known[name] = Histogram(name, text, labels, registry=registry, buckets=buckets)
    return known[name]


class HandlerSeconds(Middleware[Any]):
    """Times handlers: histogram ``gnsq_handler_seconds`` with topic, channel and outcome ("ok" or "failed").

    It costs a few microseconds per message, and includes the time of inner middleware.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, buckets: Iterable[float] = BUCKETS) -> None:
        self._histogram = _histogram(registry, *_HANDLER_SECONDS, tuple(buckets))

    def wrap(self, call: Any, handler: Handler) -> Any:
        """Return *call*, timed."""
        ok, failed = (
            self._histogram.labels(handler.topic, handler.channel, outcome).observe for outcome in ("ok", "failed")
        )
        clock = time.perf_counter

        def timed(message: Any) -> Any:
            began = clock()
            try:
                returned = call(message)
            except BaseException:
                failed(clock() - began)
                raise
            ok(clock() - began)
            return returned

        return timed


class TimedWriter(Writer):
    """A Writer that times ``publish`` and ``multipublish``: histogram ``gnsq_publish_seconds`` by topic, outcome."""

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses | None = None,
        *,
        registry: CollectorRegistry = REGISTRY,
        **options: Unpack[WriterArguments],
    ) -> None:
        super().__init__(nsqd_tcp_addresses, **options)
        self._histogram = _histogram(registry, *_PUBLISH_SECONDS, BUCKETS)

    if not TYPE_CHECKING:  # they are called as a Writer's

        def publish(self, topic: str, body: bytes, **options: Any) -> Any:
            """As :meth:`gnsq_lite.Writer.publish`."""
            return self._timed(topic, super().publish, topic, body, **options)

        def multipublish(self, topic: str, bodies: Iterable[bytes], **options: Any) -> Any:
            """As :meth:`gnsq_lite.Writer.multipublish`."""
            return self._timed(topic, super().multipublish, topic, bodies, **options)

    def _timed(self, topic: str, call: Any, *args: Any, **options: Any) -> Any:
        began, outcome = time.perf_counter(), "failed"
        try:
            result = call(*args, **options)
            outcome = "ok"
            return result
        finally:
            self._histogram.labels(topic, outcome).observe(time.perf_counter() - began)


def show(worker: Worker, registry: CollectorRegistry = REGISTRY) -> None:
    """Add *worker* to the Collector in *registry*, or register a new one there."""
    for known in list(_collectors):
        try:
            registry.unregister(known)
        except KeyError:  # it is not there
            continue
        registry.register(known)
        known.add(worker)
        return
    registry.register(Collector(worker))


def page(registry: CollectorRegistry = REGISTRY) -> tuple[str, bytes]:
    """Return content type and body of /metrics."""
    return CONTENT_TYPE_LATEST, generate_latest(registry)
