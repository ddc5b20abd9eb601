"""The listener's log and metrics, and the restart of queries, without a Spark session."""

from __future__ import annotations

import json
import logging
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.spark.listener import GAUGES, ProgressListener
from gnsq_lite.spark.restart import run_query


def progress(**found: Any) -> Any:
    state = {"topic": "t", "channel": "c", "waiting": 3, "depth": 7, "missing": [], "trouble": "", **found}
    sources = [SimpleNamespace(latestOffset=text) for text in (json.dumps(state), "{}", None)]
    return SimpleNamespace(id="q", sources=sources, lastProgress=None)


def test_the_listener_logs_a_change_as_a_warning_and_sets_gauges(caplog: pytest.LogCaptureFixture) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    gauge = partial(prometheus_client.Gauge, registry=registry)
    idle = SimpleNamespace(lastProgress=progress(missing=["n:4150"], trouble="refused", depth=None))
    listener = ProgressListener(SimpleNamespace(streams=SimpleNamespace(get={"q": idle}.get)), gauge)

    def values() -> list[Any]:
        labels = {"query": "q", "topic": "t", "channel": "c"}
        return [registry.get_sample_value(f"gnsq_spark_{name}", labels) for name in GAUGES]

    with caplog.at_level(logging.INFO, "gnsq_lite.spark"):
        listener.onQueryProgress(SimpleNamespace(progress=progress()))
        assert values() == [3, 7, 0, 0]
        listener.onQueryIdle(SimpleNamespace(id="q"))
        assert values()[2:] == [1, 1]
        assert math.isnan(values()[1])
        listener.onQueryIdle(SimpleNamespace(id="q"))
        listener.onQueryProgress(SimpleNamespace(progress=progress(waiting=0)))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]
    assert caplog.messages[1] == "query q, t/c: waiting 3, depth None, missing ['n:4150'], trouble 'refused'"
    listener.onQueryIdle(SimpleNamespace(id="another"))
    listener.onQueryTerminated(SimpleNamespace(id="q"))
    assert values() == [None] * 4


class Query:
    def __init__(self, error: str, made_batch: bool = False) -> None:
        self.error, self.lastProgress = error, {} if made_batch else None

    def awaitTermination(self) -> None:
        if self.error:
            raise RuntimeError(self.error)


LATE = "[STREAM_FAILED] Python worker failed to connect back."


def test_a_query_is_started_again_if_python_did_not_connect_and_after_no_other_error() -> None:
    queries = [Query(LATE), Query(LATE), Query("")]
    run_query(lambda: queries.pop(0))
    assert not queries
    queries = [Query(LATE), Query("disk full"), Query("")]
    with pytest.raises(RuntimeError, match="disk full"):
        run_query(lambda: queries.pop(0))
    assert len(queries) == 1


def test_a_query_whose_python_never_connects_fails_and_a_batch_begins_the_count_anew() -> None:
    queries = [Query(LATE) for _ in range(9)]
    with pytest.raises(RuntimeError, match="connect back"):
        run_query(lambda: queries.pop(0), most=3)
    assert len(queries) == 6
    queries = [Query(LATE), Query(LATE), Query(LATE, made_batch=True), Query(LATE), Query("")]
    run_query(lambda: queries.pop(0), most=3)
    assert not queries
