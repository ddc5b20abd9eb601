"""Reports the state of queries to the log and to Prometheus, because Spark's own metrics lack it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

log = logging.getLogger("gnsq_lite.spark")

#: Fields of the progress that are gauges, with the help texts of their metrics.
GAUGES = {
    "waiting": "Stored rows that are in no batch",
    "depth": "Messages of the channel on all nsqds; NaN if an nsqd has not answered",
    "missing": "Unreachable nsqds",
    "trouble": "1 if the recorder reports an error",
}


class ProgressListener(StreamingQueryListener):
    """Reports each progress of the queries of *spark*, for ``spark.streams.addListener``.  Needs PySpark 4.2.

    Logs the state with INFO, and ``missing`` and ``trouble`` with WARNING when they change.  *gauge* is
    ``prometheus_client.Gauge``, for the gauges ``gnsq_spark_NAME``.
    """

    def __init__(self, spark: Any, gauge: Callable[[str, str, Sequence[str]], Any] | None = None) -> None:
        self._spark = spark
        #: (missing, trouble) of each (query, topic, channel).
        self._states: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        labels = ("query", "topic", "channel")
        self._gauges = {name: gauge(f"gnsq_spark_{name}", GAUGES[name], labels) for name in GAUGES if gauge is not None}

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the progress of a batch."""
        self._report(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        """Report the progress of a query without a batch.  The event itself has no progress."""
        query = self._spark.streams.get(str(event.id))
        if query is not None and query.lastProgress is not None:
            self._report(query.lastProgress)

    def onQueryTerminated(self, event: Any) -> None:
        """Remove the query's gauges."""
        for labels in [one for one in self._states if one[0] == str(event.id)]:
            del self._states[labels]
            for gauge in self._gauges.values():
                gauge.remove(*labels)

    def _report(self, progress: Any) -> None:
        for source in progress.sources:
            found = json.loads(source.latestOffset or "null")
            if not isinstance(found, dict) or "waiting" not in found:
                continue
            labels = (str(progress.id), found.get("topic", ""), found.get("channel", ""))
            missing, trouble = state = found.get("missing", []), found.get("trouble", "")
            level = logging.INFO if self._states.get(labels, ([], "")) == state else logging.WARNING
            self._states[labels] = state
            text = "query %s, %s/%s: waiting %s, depth %s, missing %s, trouble %r"
            log.log(level, text, *labels, found["waiting"], found.get("depth"), missing, trouble)
            depth = float("nan") if found.get("depth") is None else found["depth"]
            values = {"waiting": found["waiting"], "depth": depth, "missing": len(missing), "trouble": bool(trouble)}
            for name, gauge in self._gauges.items():
                gauge.labels(*labels).set(values[name])
