"""``gnsq-lite stat``: depth, rates and clients of every channel, live, as nsq_stat does."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.goflags import OUTPUT, Duration, go_command, option
from gnsq_lite.cli.lists import ask_all
from gnsq_lite.cli.output import Output, console, echo
from gnsq_lite.cli.pub import Stopped, stoppable
from gnsq_lite.cli.statview import History, Lines, Row, Screen, table
from gnsq_lite.errors import HTTPError
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.options import HTTPOptions

#: Characters a line may have off a terminal; the longest names fit.
_WIDE = 1000


def gather(
    nsqds: Iterable[str], topic: str | None, channel: str | None, http: HTTPOptions | None = None
) -> tuple[list[Row], list[str]]:
    """Return a row per channel summed over the nsqds, and what could not be asked."""
    rows: dict[tuple[str, str], Row] = {}
    failed = []
    for address in nsqds:
        try:
            with NsqdClient(address, http or HTTPOptions(http_timeout=5.0)) as client:
                stats = client.stats(topic=topic, channel=channel) if topic else client.stats()
        except HTTPError as error:
            failed.append(str(error))
            continue
        for found in stats.topics:
            for part in found.channels or (None,):
                name = part.channel_name if part is not None else ""
                row = rows.setdefault((found.topic_name, name), Row(found.topic_name, name))
                _add(row, part or found, part is not None)
    return [rows[key] for key in sorted(rows)], failed


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
    """Return the HTTP addresses of the nsqds to ask."""
    if nsqd_http:
        return list(nsqd_http)
    nodes = ask_all(lookupds, LookupdClient.nodes, http)
    return list(dict.fromkeys(f"{node.broadcast_address}:{node.http_port}" for node in nodes))


@go_command("stat", versioned=True, example="stat --lookupd-http-address 127.0.0.1:4161 --topic clicks")
@flags.nsqd_http
@flags.lookupds
@option("--topic", shell_complete=topic_names, help="Only this topic.")
@option("--channel", shell_complete=channel_names, help="Only this channel.")
@option("--interval", type=Duration(low=0.01), default="2s", show_default=True, help="Between samples.")
@option("--count", type=click.IntRange(1), help="End after so many reports.")
@option("--once", is_flag=True, help="Print one sample and end.")
@flags.http_timeouts(request=5.0)
@option("--json", "as_json", is_flag=True, section=OUTPUT, help="Print each sample as a line of JSON.")
def command(
    nsqd_http: tuple[str, ...],
    lookupds: tuple[str, ...],
    topic: str | None,
    channel: str | None,
    interval: float,
    count: int | None,
    once: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Show depth, rates and clients of every channel on every nsqd that the nsqlookupds know.

    Off a terminal, with --topic and --channel, it prints the lines that nsq_stat prints.
    """
    if channel and not topic:
        raise click.UsageError("--channel needs --topic")
    http = flags.http_options(options)

    def sample() -> tuple[list[Row], list[str]]:
        return gather(addresses(nsqd_http, lookupds, http), topic, channel, http)

    try:
        with stoppable(signal.SIGHUP):
            if topic and channel and not (as_json or once or console.is_terminal):
                return _lines(sample, interval, count, f"channel {channel!r} of topic {topic!r}")
            return _tables(sample, interval, 1 if once else count, as_json, live=not once)
    except Stopped:  # how it always ends: nothing is lost by it
        return 0


def _lines(sample: Callable[[], tuple[list[Row], list[str]]], interval: float, count: int | None, what: str) -> int:
    lines, left = Lines(interval), None if count is None else count + 1
    while left is None or left > 0:
        rows, failed = sample()
        found = [row for row in rows if row.channel]
        if failed or not found:
            raise click.ClickException(failed[0] if failed else f"there is no {what}")
        for line in lines.add(found[0]):
            echo(line)
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(interval)
    return 0


def _tables(
    sample: Callable[[], tuple[list[Row], list[str]]], interval: float, count: int | None, as_json: bool, live: bool
) -> int:
    history, screen, left = History(), Screen(console) if live and console.is_terminal else None, count
    while True:
        rows, failed = sample()
        history.add(rows, time.monotonic())
        if as_json:
            echo(json.dumps({"channels": [asdict(row) for row in rows], "failed": failed}))
        else:
            _draw(rows, failed, history, screen)
        left = None if left is None else left - 1
        if left == 0:
            return 1 if failed and not rows else 0
        time.sleep(interval)


def _draw(rows: list[Row], failed: list[str], history: History, screen: Screen | None) -> None:
    notes = [Text(f"cannot ask {why}", style="red") for why in dict.fromkeys(failed)]
    if screen is not None:
        width, height = console.size
        for note in notes:
            note.truncate(width, overflow="ellipsis")
        screen.draw(table(rows, history.rates, width, max(4, height - 1 - len(notes))) + notes)
        return
    if console.is_terminal:
        lines, output = table(rows, history.rates, console.width), console
    else:  # for a program: no name is cut off
        lines, output = table(rows, history.rates, _WIDE), Output(width=_WIDE, highlight=False)
    for line in [*lines, *notes]:
        output.print(line, no_wrap=True, crop=False, overflow="ignore")
