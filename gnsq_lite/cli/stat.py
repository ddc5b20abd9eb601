"""``gnsq-lite stat``: depth, rates and clients of every channel, live."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, fields
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.lists import query_all
from gnsq_lite.cli.output import console, echo, errors, visible
from gnsq_lite.cli.params import OUTPUT, Duration, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.cli.pub import Stopped, stoppable
from gnsq_lite.cli.statview import History, Row, table
from gnsq_lite.errors import HTTPError
from gnsq_lite.http import LookupdClient, NsqdClient, NsqdStats
from gnsq_lite.options import HTTPOptions, format_address


def gather(
    nsqds: Iterable[str], topics: Sequence[str], channel: str | None, http: HTTPOptions | None = None
) -> tuple[list[Row], list[str]]:
    """Return a row per channel with the sums over all nsqds, and the errors of failed requests."""
    rows: dict[tuple[str, str], Row] = {}
    failed = []
    for address in nsqds:
        try:
            with NsqdClient(address, http or HTTPOptions(http_timeout=5.0)) as client:
                answers = [client.stats(topic=each, channel=channel) for each in topics] or [client.stats()]
                limit = _ephemeral_limit(client) if any(map(_has_ephemeral, answers)) else 0
        except HTTPError as error:
            failed.append(str(error))
            continue
        for found in (each for answer in answers for each in answer.topics):
            for part in found.channels or (None,):
                name = part.channel_name if part is not None else ""
                row = rows.setdefault((found.topic_name, name), Row(found.topic_name, name))
                _add(row, part or found, part is not None)
                row.full |= (name or found.topic_name).endswith("#ephemeral") and (part or found).depth >= limit
    return [rows[key] for key in sorted(rows)], failed


def _has_ephemeral(answer: NsqdStats) -> bool:
    return any("#" in topic.topic_name or any("#" in c.channel_name for c in topic.channels) for topic in answer.topics)


def _ephemeral_limit(client: NsqdClient) -> int:
    """Return nsqd's ``--mem-queue-size``, or nsqd's default if the server does not report it."""
    try:
        return int(client.get("/config/mem_queue_size").json())
    except (HTTPError, TypeError, ValueError):
        return 10_000


def _add(row: Row, source: Any, is_channel: bool) -> None:
    row.nsqds += 1
    row.depth += source.depth
    row.disk_depth += min(source.depth, source.backend_depth)
    row.memory_depth += max(0, source.depth - source.backend_depth)
    row.messages += source.message_count
    row.paused |= source.paused
    if is_channel:
        row.in_flight += source.in_flight_count
        row.deferred += source.deferred_count
        row.requeued += source.requeue_count
        row.timed_out += source.timeout_count
        row.clients += source.client_count or len(source.clients)


def addresses(nsqd_http: tuple[str, ...], lookupds: tuple[str, ...], http: HTTPOptions | None = None) -> list[str]:
    """Return the HTTP addresses of the nsqds to query."""
    if nsqd_http:
        return list(nsqd_http)
    nodes = query_all(lookupds, LookupdClient.nodes, http)
    return list(dict.fromkeys(format_address((node.broadcast_address, node.http_port)) for node in nodes))


@tool("stat", example="stat --lookupd-http-address 127.0.0.1:4161 --topic clicks")
@flags.nsqd_http
@flags.lookupds
@option("--topic", "topics", multiple=True, shell_complete=topic_names, help="Only this topic; repeatable.")
@option("--channel", shell_complete=channel_names, help="Only this channel.")
@option("--interval", type=Duration(low=0.01), default="2s", show_default=True, help="Time between samples.")
@option("--count", type=click.IntRange(1), help="Exit after this many samples.")
@flags.http_timeout
@option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print each sample as a line of JSON.")
def command(
    nsqd_http: tuple[str, ...],
    lookupds: tuple[str, ...],
    topics: tuple[str, ...],
    channel: str | None,
    interval: float,
    count: int | None,
    http_timeout: float,
    as_json: bool,
) -> int:
    """Show depth, rates and clients of every channel until Ctrl-C or --count, for the given or all registered nsqds.

    Without a terminal, each sample is printed as a block of tab-separated lines with a heading.
    """
    if channel and not topics:
        raise click.UsageError("--channel needs --topic")
    http = HTTPOptions(http_timeout=http_timeout)
    history, left = History(), count
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    try:
        with stoppable(signal.SIGHUP), live if console.is_terminal and not as_json else nullcontext():
            while True:
                rows, failed = gather(addresses(nsqd_http, lookupds, http), topics, channel, http)
                history.add(rows, time.monotonic())
                if as_json:
                    echo(json.dumps({"channels": [asdict(row) for row in rows], "failed": failed}))
                elif console.is_terminal:
                    _draw(live, rows, failed, history)
                else:
                    _print_lines(rows, failed)
                left = None if left is None else left - 1
                if left == 0:
                    return 1 if failed and not rows else 0
                time.sleep(interval)
    except Stopped:  # Ctrl-C is the usual end
        return 0


def _draw(live: Live, rows: list[Row], failed: list[str], history: History) -> None:
    notes = [Text(f"cannot reach {why}", style="red", no_wrap=True, overflow="ellipsis") for why in failed]
    width, height = console.size
    shown = table(rows, history.rates, width, max(4, height - 2 - len(notes)))
    # The cursor stays in an empty last line, so that an echoed ^C does not move the table.
    live.update(Group(*shown, *notes, Text("")), refresh=True)


def _print_lines(rows: list[Row], failed: list[str]) -> None:
    echo("\t".join(field.name for field in fields(Row)))
    for row in rows:
        echo("\t".join(visible("" if value is None else str(value)) for value in astuple(row)))
    for why in failed:
        errors.print(f"gnsq-lite: {why}", markup=False)
