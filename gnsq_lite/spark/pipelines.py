"""Pipelines people run: archive, replay, summarize, relay.  ``gnsq-lite spark ...`` calls these functions.

Each takes the source's or the sink's options as Spark takes them (camelCase), uses the running SparkSession or makes
one, reports progress to a callback, and returns a frozen summary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnsq_lite.errors import NSQError, OptionError
from gnsq_lite.spark.archive import replace_batch, store_batch
from gnsq_lite.spark.launch import session
from gnsq_lite.spark.location import is_remote, is_url, place
from gnsq_lite.spark.options import SinkOptions, SourceOptions, parse


class PipelineFailed(NSQError):
    """A streaming query ended with an error; the text is Spark's."""


@dataclass(frozen=True)
class Progress:
    """How far a pipeline is."""

    batches: int
    rows: int
    rows_per_second: float


@dataclass(frozen=True)
class Outcome:
    """What a pipeline did."""

    batches: int
    rows: int
    seconds: float


OnProgress = Callable[[Progress], None]


def archive(
    source: Mapping[str, str],
    path: str | Path,
    *,
    checkpoint: str | Path,
    available_now: bool = False,
    trigger: float = 10.0,
    where: str | None = None,
    spark: Any = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Store a topic as Parquet by day and hour of publishing, every message once.

    Args:
        source: Options of the streaming source: topic, channel, spoolDir, addresses ...
        path: The archive's directory, or its URL on HDFS or an object store, which Spark must be able to write to; see
            :mod:`gnsq_lite.spark.archive`.
        checkpoint: The query's checkpoint, a path or a URL Spark can write to; keep it with the spool.
        available_now: End when the backlog of this moment is stored; otherwise run until interrupted.
        trigger: Seconds between micro-batches.
        where: SQL; only rows for which it holds are stored (all are acknowledged).
    Raises:
        OptionError: before Spark is started.  PipelineFailed: the query ended with an error.
    """
    parse(SourceOptions, source)
    target = place(str(path), "path")
    spark = spark or session()
    frame = spark.readStream.format("nsq").options(**source).load()
    if where:
        frame = frame.where(where)
    if not is_remote(target):
        Path(target).mkdir(parents=True, exist_ok=True)

    def store(batch: Any, batch_id: int) -> None:
        if is_remote(target):
            replace_batch(batch, batch_id, query_id(batch), target)
        else:
            observed, count = _counted(batch)
            store_batch(observed, batch_id, query_id(batch), Path(target), count)

    return _run(frame.writeStream.foreachBatch(store), checkpoint, available_now, trigger, on_progress)


def query_id(batch: Any) -> str:
    """Return the id of the streaming query whose foreachBatch runs: the same after a restart from its checkpoint."""
    found: str | None = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise PipelineFailed("this PySpark tells foreachBatch no query id, so a batch could not be told from another")
    return found


def relay(
    source: Mapping[str, str],
    sink: Mapping[str, str],
    *,
    checkpoint: str | Path,
    select: str = "body",
    where: str | None = None,
    available_now: bool = False,
    trigger: float = 1.0,
    spark: Any = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Publish what a SQL expression makes of each message to another topic; at least once.

    Args:
        select: SQL of the new body, of the source's columns; such as ``upper(string(body))``.
        where: SQL; only rows for which it holds are published.
    Raises:
        OptionError: before Spark is started.  PipelineFailed: the query ended with an error.
    """
    given = parse(SinkOptions, sink)
    if parse(SourceOptions, source).topic == given.topic:
        raise OptionError("topic", given.topic, "a topic relayed to itself never ends")
    spark = spark or session()
    frame = spark.readStream.format("nsq").options(**source).load()
    if where:
        frame = frame.where(where)
    writer = frame.selectExpr(f"{select} AS body").writeStream.format("nsq").options(**sink)
    return _run(writer, checkpoint, available_now, trigger, on_progress)


def replay(
    path: str | Path,
    sink: Mapping[str, str],
    *,
    since: str | None = None,
    until: str | None = None,
    where: str | None = None,
    rate: float | None = None,
    select: str = "body",
    spark: Any = None,
) -> Outcome:
    """Publish an archive's messages again, oldest first within each task; at least once.

    Args:
        path: An archive, or any Parquet with the columns body and timestamp.
        since, until: Publish times, ``"2026-11-21 04:00:00"`` in the session's time zone; since <= t < until.
        where: SQL over the archive's columns.
        rate: Messages per second at the most, over all tasks; None: as fast as nsqd takes them.
        select: SQL of the body to publish.
    Raises:
        OptionError: before Spark is started.  FileNotFoundError: there is no archive.
    """
    parse(SinkOptions, sink)
    if rate is not None and not rate > 0:
        raise OptionError("rate", rate, "must be more than 0 messages a second")
    begun = time.monotonic()
    frame = read_archive(spark or session(), path)
    for condition in (where, since and f"timestamp >= TIMESTAMP '{_time(since)}'"):
        frame = frame.where(condition) if condition else frame
    if until:
        frame = frame.where(f"timestamp < TIMESTAMP '{_time(until)}'")
    options = dict(sink)
    if rate is not None:
        frame = frame.coalesce(1)
        options["rowsPerSecond"] = str(rate)
    chosen = frame.sortWithinPartitions("timestamp").selectExpr(f"{select} AS body")
    observed, count = _counted(chosen)
    observed.write.format("nsq").options(**options).mode("append").save()
    return Outcome(1, count(), time.monotonic() - begun)


def _counted(frame: Any) -> tuple[Any, Callable[[], int]]:
    """Return *frame*, and what tells its rows when it was written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    return frame.observe(observation, f.count(f.lit(1)).alias("rows")), lambda: int(observation.get.get("rows") or 0)


def _time(text: str) -> str:
    if any(c in text for c in "'\\\n"):
        raise OptionError("since/until", text, "must be a time such as 2026-11-21 04:00:00")
    return text


def read_archive(spark: Any, path: str | Path) -> Any:
    """Return the frame of an archive, or of any Parquet file or directory; a URL is Spark's to read.

    Raises FileNotFoundError.
    """
    if is_url(str(path)):
        return spark.read.parquet(str(path))
    root = Path(path).absolute()
    if not root.is_file() and not any(root.rglob("*.parquet")):
        raise FileNotFoundError(f"no Parquet files below {root}")
    return spark.read.parquet(root.as_uri())


def _run(
    writer: Any, checkpoint: str | Path, available_now: bool, trigger: float, on_progress: OnProgress | None
) -> Outcome:
    """Start a query, report until it ends, and stop it in order on Ctrl-C."""
    begun = time.monotonic()
    when = {"availableNow": True} if available_now else {"processingTime": f"{trigger:g} seconds"}
    where = str(checkpoint) if is_url(str(checkpoint)) else Path(checkpoint).absolute().as_uri()
    query = writer.option("checkpointLocation", where).trigger(**when).start()
    watch = _Watch(on_progress)
    try:
        while not query.awaitTermination(0.5):
            watch.look(query)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        raise PipelineFailed(_first_lines(str(error))) from error
    finally:
        query.stop()
    watch.look(query)
    return Outcome(watch.batches, watch.rows, time.monotonic() - begun)


def _first_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[:30])


class _Watch:
    """Adds up the progress reports of a query; each batch is counted once."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._last = -1
        self.batches = self.rows = 0

    def look(self, query: Any) -> None:
        rate = 0.0
        for report in query.recentProgress:
            number, rows = int(report["batchId"]), int(report["numInputRows"])
            if rows and number > self._last:
                self._last = number
                self.batches += 1
                self.rows += rows
            rate = float(report.get("processedRowsPerSecond") or 0.0)
        if self._on_progress is not None:
            self._on_progress(Progress(self.batches, self.rows, rate))
