"""The metrics page of a worker command.  A page of several processes has the label ``process``.

The values of several processes are not added up, because Prometheus needs the label to compute sums and rates across
restarts.  Without the extra ``prometheus`` this page raises MissingExtra, and the other status pages work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gnsq_lite.errors import MissingExtra

if TYPE_CHECKING:
    from gnsq_lite.worker import Worker


def worker_page(worker: Worker, depths: Callable[..., Any] | None = None) -> Callable[[], tuple[str, bytes]]:
    """Add *worker* to the default registry, time its handlers, and return the function that renders the page.

    If *depths*, a function that returns the depths of channels, is given, the page contains the depths.
    """
    try:
        from gnsq_lite.contrib import prometheus
    except MissingExtra:
        return partial(merge, {})  # raises MissingExtra at each request
    collector = prometheus.show(worker)
    if depths is not None:
        collector.depths.append(depths)
    if not any(isinstance(each, prometheus.HandlerSeconds) for each in worker.middleware):
        worker.middleware.insert(0, prometheus.HandlerSeconds())
    return prometheus.page


def merge(pages: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Merge *pages*, which are given by process number.  Return the content type and body.  Raises MissingExtra."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ModuleNotFoundError as missing:
        raise MissingExtra("/metrics", "prometheus", "prometheus-client") from missing
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(pages))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Merged:
    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self._pages = pages

    def describe(self) -> Iterable[Any]:
        return ()

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Metric] = {}
        for process, body in sorted(self._pages.items()):
            for family in text_string_to_metric_families(body.decode("utf-8")):
                merged = families.get(family.name)
                if merged is None:
                    merged = families[family.name] = Metric(family.name, family.documentation, family.type)
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "process": process}, sample.value)
        yield from families.values()
