"""``gnsq-lite spark``: archive, compact, replay, summarize and relay with Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from gnsq_lite.cli.output import Progress, console, errors
from gnsq_lite.errors import NSQError, OptionError
from gnsq_lite.spark.compat import require_pyspark
from gnsq_lite.spark.location import is_url, local_directory, place

F = TypeVar("F", bound=Callable[..., Any])


class ArchivePath(click.Path):
    """A path that exists, or a URL, which is Spark's to read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_url(str(value)) else super().convert(value, param, ctx)


ADDRESSES = (
    click.option("--nsqd", metavar="HOST:PORT", multiple=True, help="An nsqd; may be given several times."),
    click.option("--lookupd", metavar="HOST:PORT", multiple=True, help="An nsqlookupd (HTTP); may be repeated."),
    click.option("--option", "-o", metavar="NAME=VALUE", multiple=True, help="Any option of format('nsq')."),
    click.option("--master", default="local[*]", show_default=True, help="Spark master."),
    click.option("--conf", metavar="NAME=VALUE", multiple=True, help="Spark configuration."),
)
STREAMING = (
    click.option("--topic", required=True, help="Topic to read."),
    click.option("--channel", required=True, help="Channel to read: one per pipeline."),
    click.option(
        "--work-dir", required=True, type=click.Path(), help="Keeps the spool and the checkpoint; a path or URL."
    ),
    click.option("--available-now", is_flag=True, help="End when the backlog of this moment is done."),
    click.option("--trigger", type=click.FloatRange(0.1), metavar="SECONDS", help="Between micro-batches."),
    click.option("--where", metavar="SQL", help="Only rows for which this holds."),
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Decorate a command with several options, in their order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def pairs(given: Iterable[str], name: str) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict.  Raises OptionError; the value is not shown, it may be a secret."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise OptionError(name, key, "must be NAME=VALUE")
        found[key.strip()] = value
    return found


def addresses(nsqd: tuple[str, ...], lookupd: tuple[str, ...], option: tuple[str, ...]) -> dict[str, str]:
    """Return the options a source and a sink share."""
    found = pairs(option, "--option")
    if nsqd:
        found["nsqdTCPAddresses"] = ",".join(nsqd)
    if lookupd:
        found["lookupdHTTPAddresses"] = ",".join(lookupd)
    return found


def stream_source(topic: str, channel: str, work_dir: str, shared: dict[str, str]) -> dict[str, str]:
    """Return the options of a streaming source whose spool is in *work_dir*, a path or a URL."""
    return {**shared, "topic": topic, "channel": channel, "spoolDir": f"{place(work_dir, '--work-dir')}/spool"}


def start_spark(master: str, conf: tuple[str, ...]) -> Any:
    """Return a session with Spark's chatter turned down; its own progress bar would fight with ours."""
    from gnsq_lite.spark import session

    logging.getLogger("py4j").setLevel(logging.ERROR)
    given = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false", **pairs(conf, "--conf")}
    spark = session(master, "gnsq-lite", given)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_streaming(title: str, run: Callable[[Callable[[Any], None]], Any]) -> int:
    """Run a streaming pipeline with a progress line; print what it did."""
    with Progress(title) as progress:
        outcome = run(lambda now: progress.show(batches=now.batches, rows=now.rows))
    console.print(
        f"{title}: {outcome.rows:,} rows in {outcome.batches:,} batches, {outcome.seconds:.1f} s", markup=False
    )
    return 0


@click.group("spark")
def command() -> None:
    """Pipelines on Spark: pip install ".[spark]" in a checkout, and a Java 17."""


@command.command("archive")
@click.argument("path", type=click.Path())
@with_options(*STREAMING, *ADDRESSES)
def archive_command(path: str, **given: Any) -> int:
    """Store a topic below PATH as Parquet by day and hour; every message once."""
    require_pyspark()
    from gnsq_lite.spark.pipelines import archive

    source, spark, rest = _prepare(given)
    return run_streaming("archive", lambda show: archive(source, path, spark=spark, on_progress=show, **rest))


@command.command("relay")
@click.option("--to", "target", required=True, metavar="TOPIC", help="Topic to publish to.")
@click.option("--to-nsqd", metavar="HOST:PORT", multiple=True, help="nsqds to publish to; default: those read from.")
@click.option("--select", default="body", show_default=True, metavar="SQL", help="The new body.")
@with_options(*STREAMING, *ADDRESSES)
def relay_command(target: str, to_nsqd: tuple[str, ...], select: str, **given: Any) -> int:
    """Publish what a SQL expression makes of each message to another topic."""
    require_pyspark()
    from gnsq_lite.spark.pipelines import relay

    sink = _relay_sink(given, to_nsqd, target)
    source, spark, rest = _prepare(given)
    return run_streaming(
        "relay", lambda show: relay(source, sink, select=select, spark=spark, on_progress=show, **rest)
    )


def _relay_sink(given: dict[str, Any], to_nsqd: tuple[str, ...], target: str) -> dict[str, str]:
    """Return the sink's options: of those given the addresses and the connection's.  Raises OptionError."""
    from gnsq_lite.spark.options import SinkOptions, parse

    found = addresses(given["nsqd"], given["lookupd"], given["option"])
    if to_nsqd:
        found.pop("lookupdHTTPAddresses", None)
        found["nsqdTCPAddresses"] = ",".join(to_nsqd)
    shared = {key: text for key, text in found.items() if key.lower().startswith(("nsq", "lookupd"))}
    sink = {key: text for key, text in shared.items() if not key.lower().startswith("nsq.storage.")}
    sink["topic"] = target
    parse(SinkOptions, sink)  # a mistake shows before a JVM is started for it
    return sink


def _prepare(given: dict[str, Any]) -> tuple[dict[str, str], Any, dict[str, Any]]:
    """Return (source options, session, the pipeline's keywords)."""
    from gnsq_lite.spark.options import SourceOptions, parse

    shared = addresses(given["nsqd"], given["lookupd"], given["option"])
    source = stream_source(given["topic"], given["channel"], given["work_dir"], shared)
    parse(SourceOptions, source)  # a mistake shows before a JVM is started for it
    rest: dict[str, Any] = {
        "checkpoint": f"{place(given['work_dir'], '--work-dir')}/checkpoint",
        "available_now": given["available_now"],
        "where": given["where"],
    }
    if given["trigger"] is not None:
        rest["trigger"] = given["trigger"]
    return source, start_spark(given["master"], given["conf"]), rest


@command.command("replay")
@click.argument("path", type=ArchivePath(exists=True))
@click.option("--topic", required=True, help="Topic to publish to.")
@click.option("--since", metavar="TIME", help="Published at this time or later: '2026-11-21 04:00:00'.")
@click.option("--until", metavar="TIME", help="Published before this time.")
@click.option("--where", metavar="SQL", help="Only rows for which this holds.")
@click.option("--rate", type=click.FloatRange(0.01), metavar="N", help="Messages a second at the most.")
@click.option("--select", default="body", show_default=True, metavar="SQL", help="The body to publish.")
@with_options(*ADDRESSES)
def replay_command(path: str, topic: str, master: str, conf: tuple[str, ...], **given: Any) -> int:
    """Publish an archive's messages again."""
    require_pyspark()
    from gnsq_lite.spark.options import SinkOptions, parse
    from gnsq_lite.spark.pipelines import replay

    sink = addresses(given.pop("nsqd"), given.pop("lookupd"), given.pop("option"))
    sink["topic"] = topic
    parse(SinkOptions, sink)
    errors.print(f"replay: {path} -> {topic}", markup=False)
    try:
        outcome = replay(path, sink, spark=start_spark(master, conf), **given)
    except FileNotFoundError as error:
        raise NSQError(str(error)) from error
    console.print(f"replay: {outcome.rows:,} messages in {outcome.seconds:.1f} s", markup=False)
    return 0


@command.command("summarize")
@click.option("--path", type=ArchivePath(exists=True), help="An archive to read; a path or URL.")
@click.option("--topic", help="A topic to take a snapshot of instead; what it reads is acknowledged.")
@click.option("--channel", help="The snapshot's channel.")
@click.option("--work-dir", type=click.Path(), help="Keeps the snapshot.")
@click.option("--snapshot", metavar="NAME", help="Make or read the snapshot of this name; default: a new one.")
@click.option("--window", default="1 minute", show_default=True, metavar="LENGTH", help="As Spark writes it.")
@click.option("--where", metavar="SQL", help="Only rows for which this holds.")
@click.option("--png", type=click.Path(), help="Draw a plot into this file (needs the extra 'plot').")
@with_options(*ADDRESSES)
def summarize_command(path: str | None, window: str, where: str | None, png: str | None, **given: Any) -> int:
    """Count messages, sizes, attempts and lag per topic and window."""
    require_pyspark()
    from rich.table import Table

    from gnsq_lite.spark.summary import HEADERS, cells, plot, summarize

    source = _snapshot_source(path, given)
    begun = time.monotonic()
    spark = start_spark(given["master"], given["conf"])
    windows = summarize(path=path, source=source, window=window, where=where, spark=spark)
    table = Table(*HEADERS)
    for row in cells(windows):
        table.add_row(*row)
    console.print(table)
    if png is not None:
        plot(windows, png)
        console.print(f"plot: {png}", markup=False)
    total = sum(one.messages for one in windows)
    console.print(f"summarize: {total:,} messages in {time.monotonic() - begun:.1f} s", markup=False)
    return 0


def _snapshot_source(path: str | None, given: dict[str, Any]) -> dict[str, str] | None:
    from gnsq_lite.spark.options import SourceOptions, parse

    if path is not None:
        return None
    missing = [name for name in ("topic", "channel", "work_dir") if not given[name]]
    if missing:
        raise click.UsageError("give --path, or --topic, --channel and --work-dir")
    shared = addresses(given["nsqd"], given["lookupd"], given["option"])
    work = str(local_directory(given["work_dir"], "--work-dir"))  # a snapshot is nowhere else
    source = stream_source(given["topic"], given["channel"], work, shared)
    source["snapshot"] = given["snapshot"] or time.strftime("%Y%m%d-%H%M%S")
    parse(SourceOptions, source)
    errors.print(f"summarize: read it again with --snapshot {source['snapshot']}", markup=False)
    return source


@command.command("compact")
@click.argument("path", type=click.Path(exists=True))
@click.option("--min-files", type=click.IntRange(2), default=4, show_default=True, help="Join an hour from so many on.")
@click.option("--min-age", type=click.FloatRange(0), default=3600.0, show_default=True, metavar="SECONDS")
def compact_command(path: str, min_files: int, min_age: float) -> int:
    """Join an archive's small files, hour by hour; --min-age: only hours that were not written to for so long."""
    require_pyspark()
    from gnsq_lite.spark.archive import compact

    done = compact(path, min_files=min_files, min_age=min_age)
    files = f"{done.files_before:,} files -> {done.files_after:,}"
    console.print(f"compact: {done.rows:,} rows of {done.partitions:,} hours, {files}", markup=False)
    return 0
