"""Windowed counts, sizes, attempts and lag per topic: a table, and a plot as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.spark.launch import session
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.pipelines import read_archive


@dataclass(frozen=True)
class Window:
    """One topic in one window of publish time.  Lag is from publishing to archiving, or to now; seconds."""

    topic: str
    begins: datetime
    messages: int
    bytes: int
    mean_bytes: float
    retried: int
    most_attempts: int
    mean_lag: float
    longest_lag: float


def summarize(
    *,
    path: str | Path | None = None,
    source: Mapping[str, str] | None = None,
    window: str = "1 minute",
    where: str | None = None,
    spark: Any = None,
) -> list[Window]:
    """Return a row per topic and window, in order of time.

    Args:
        path: An archive to read; or
        source: options of the batch source: a snapshot of the channel is taken, and acknowledged.
        window: Length of a window, as Spark writes it: ``"10 seconds"``, ``"1 hour"``.
        where: SQL; only rows for which it holds count.
    Raises:
        OptionError: neither or both of path and source, or an invalid one.  FileNotFoundError: no archive.
    """
    if (path is None) == (source is None):
        raise OptionError("path", str(path), "give either an archive's path or a source's options")
    if source is not None:
        parse(SourceOptions, source)
    spark = spark or session()
    frame = read_archive(spark, path) if path is not None else spark.read.format("nsq").options(**source or {}).load()
    if where:
        frame = frame.where(where)
    seen = "archived_at" if "archived_at" in frame.columns else "current_timestamp()"
    lag = f"(unix_micros({seen}) - unix_micros(timestamp)) / 1e6"
    from pyspark.sql import functions as f

    grouped = frame.groupBy("topic", f.window("timestamp", window).alias("w")).agg(
        f.expr("count(*)"),
        f.expr("sum(length(body))"),
        f.expr("avg(length(body))"),
        f.expr("count_if(attempts > 1)"),
        f.expr("max(attempts)"),
        f.expr(f"avg({lag})"),
        f.expr(f"max({lag})"),
    )
    rows = grouped.orderBy("w", "topic").collect()
    return [Window(row[0], row[1]["start"], *row[2:]) for row in rows]


HEADERS = ("topic", "window", "messages", "bytes", "mean size", "retried", "attempts", "mean lag", "longest lag")


def cells(windows: Sequence[Window]) -> list[tuple[str, ...]]:
    """Return the table's rows as text, in the order of :data:`HEADERS`."""
    return [
        (
            one.topic,
            one.begins.strftime("%Y-%m-%d %H:%M:%S"),
            f"{one.messages:,}",
            f"{one.bytes:,}",
            f"{one.mean_bytes:,.0f}",
            f"{one.retried:,}",
            str(one.most_attempts),
            f"{one.mean_lag:.3f} s",
            f"{one.longest_lag:.3f} s",
        )
        for one in windows
    ]


def plot(windows: Sequence[Window], path: str | Path) -> None:
    """Draw messages and mean lag per window, a line per topic, as PNG.  Raises MissingExtra without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("the plot", "plot", "matplotlib") from error
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    counts, lags = figure.subplots(2, 1, sharex=True)
    for topic in sorted({one.topic for one in windows}):
        mine = [one for one in windows if one.topic == topic]
        times = [one.begins for one in mine]
        counts.plot(times, [one.messages for one in mine], marker=".", label=topic)
        lags.plot(times, [one.mean_lag for one in mine], marker=".", label=topic)
    counts.set_ylabel("messages per window")
    lags.set_ylabel("mean lag, seconds")
    counts.set_ylim(bottom=0)
    lags.set_ylim(bottom=0)
    if windows:
        counts.legend()
    figure.autofmt_xdate()
    figure.savefig(str(path), format="png", dpi=120)
