"""The metrics of several processes on one page, with a label ``process``; needs the extra ``prometheus``.

Nothing is added up here: sums, and rates over restarts, are Prometheus' own work and right only with the label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gnsq_lite.errors import MissingExtra

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError as missing:
    raise MissingExtra("/metrics", "prometheus", "prometheus-client") from missing


class _Merged:
    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self._pages = pages

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for process, body in sorted(self._pages.items()):
            for family in text_string_to_metric_families(body.decode("utf-8")):
                merged = families.get(family.name)
                if merged is None:
                    merged = families[family.name] = Metric(family.name, family.documentation, family.type)
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "process": process}, sample.value)
        yield from families.values()


def merge(pages: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return content type and body of the merged page; *pages* are by process number."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(pages))
    return CONTENT_TYPE_LATEST, generate_latest(registry)
