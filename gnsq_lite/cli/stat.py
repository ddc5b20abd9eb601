"""``gnsq-lite stat``: depth, rates and clients of every channel, live, as nsq_stat does."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnsq_lite.cli.lists import ask_all
from gnsq_lite.cli.output import Output, console, echo
from gnsq_lite.errors import HTTPError
from gnsq_lite.http import LookupdClient, NsqdClient

BARS = "▁▂▃▄▅▆▇█"

#: Samples a sparkline shows.
WIDTH = 16

#: Characters a line may have off a terminal; the longest names fit.
_WIDE = 1000


@dataclass
class Row:
    """One channel, or a topic that has none, over all nsqds."""

    topic: str
    channel: str
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    nsqds: int = 0
    paused: bool = False
    #: Messages a second since the last sample; None at the first.
    rate: float | None = None


def gather(nsqds: Iterable[str], topic: str | None, channel: str | None) -> tuple[list[Row], list[str]]:
    """Return a row per channel summed over the nsqds, and what could not be asked."""
    rows: dict[tuple[str, str], Row] = {}
    failed = []
    for address in nsqds:
        try:
            with NsqdClient(address, http_timeout=5.0) as client:
                stats = client.stats(topic=topic, channel=channel) if topic else client.stats()
        except HTTPError as error:
            failed.append(str(error))
            continue
        for found in stats.topics:
            for part in found.channels or (None,):
                name = part.channel_name if part is not None else ""
                row = rows.setdefault((found.topic_name, name), Row(found.topic_name, name))
                row.nsqds += 1
                source: Any = part or found
                row.depth += source.depth
                row.messages += source.message_count
                row.paused |= source.paused
                if part is not None:
                    row.in_flight += part.in_flight_count
                    row.deferred += part.deferred_count
                    row.requeued += part.requeue_count
                    row.timed_out += part.timeout_count
                    row.clients += part.client_count or len(part.clients)
    return [rows[key] for key in sorted(rows)], failed


def sparkline(values: Iterable[float]) -> str:
    """Return the values as a line of bars, the highest as a full one."""
    known = list(values)
    top = max(known, default=0.0)
    if top <= 0:
        return BARS[0] * len(known)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in known)


class History:
    """Rates between samples, and their course."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}
        self._at: float | None = None
        self.rates: dict[tuple[str, str], deque[float]] = {}

    def add(self, rows: list[Row], now: float) -> None:
        """Set each row's rate since the sample before."""
        elapsed = None if self._at is None else max(now - self._at, 1e-9)
        for row in rows:
            key = (row.topic, row.channel)
            if elapsed is not None and key in self._last:
                row.rate = max(0, row.messages - self._last[key]) / elapsed
                self.rates.setdefault(key, deque(maxlen=WIDTH)).append(row.rate)
            self._last[key] = row.messages
        self._at = now


def table(rows: list[Row], history: History) -> Table:
    """Return the rows as people read them; what waits for somebody is yellow, what nobody reads is red."""
    drawn = Table("topic", "channel", box=None, header_style="bold", pad_edge=False)
    for name in ("depth", "in flight", "deferred", "requeued", "timed out", "messages", "msgs/s"):
        drawn.add_column(name, justify="right")
    drawn.add_column("last samples")
    drawn.add_column("clients", justify="right")
    drawn.add_column("nsqds", justify="right")
    for row in rows:
        style = "red" if row.depth and row.channel and not row.clients else "yellow" if row.depth else None
        drawn.add_row(
            row.topic,
            (row.channel or "(no channel)") + (" (paused)" if row.paused else ""),
            f"{row.depth:,}",
            f"{row.in_flight:,}",
            f"{row.deferred:,}",
            f"{row.requeued:,}",
            f"{row.timed_out:,}",
            f"{row.messages:,}",
            "-" if row.rate is None else f"{row.rate:,.0f}",
            sparkline(history.rates.get((row.topic, row.channel), ())),
            str(row.clients),
            str(row.nsqds),
            style=style,
        )
    return drawn


def addresses(nsqd_http: tuple[str, ...], lookupds: tuple[str, ...]) -> list[str]:
    """Return the HTTP addresses of the nsqds to ask."""
    if nsqd_http:
        return list(nsqd_http)
    nodes = ask_all(lookupds, LookupdClient.nodes)
    return list(dict.fromkeys(f"{node.broadcast_address}:{node.http_port}" for node in nodes))


@click.command("stat")
@click.option("--nsqd-http-address", "nsqd_http", multiple=True, metavar="HOST:PORT", help="An nsqd; may be repeated.")
@click.option("--lookupd-http-address", "lookupds", multiple=True, metavar="HOST:PORT")
@click.option("--topic", help="Only this topic.")
@click.option("--channel", help="Only this channel.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between samples.")
@click.option("--count", type=click.IntRange(0), default=0, help="End after so many samples; 0: never.")
@click.option("--once", is_flag=True, help="Print one sample and end.")
@click.option("--json", "as_json", is_flag=True, help="Print each sample as a line of JSON.")
def command(
    nsqd_http: tuple[str, ...],
    lookupds: tuple[str, ...],
    topic: str | None,
    channel: str | None,
    interval: float,
    count: int,
    once: bool,
    as_json: bool,
) -> int:
    """Show depth, rates and clients of every channel on every nsqd that the nsqlookupds know."""
    if channel and not topic:
        raise click.UsageError("--channel needs --topic")
    history, left = History(), 1 if once else count
    live = None if once or as_json or not console.is_terminal else Live(console=console, auto_refresh=False)
    if live is not None:
        live.start()
    try:
        while True:
            rows, failed = gather(addresses(nsqd_http, lookupds), topic, channel)
            history.add(rows, time.monotonic())
            _draw(rows, failed, history, live, as_json)
            left -= 1
            if left == 0:
                return 1 if failed and not rows else 0
            time.sleep(interval)
    finally:
        if live is not None:
            live.stop()


def _draw(rows: list[Row], failed: list[str], history: History, live: Live | None, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"channels": [asdict(row) for row in rows], "failed": failed}))
        return
    drawn = Group(table(rows, history), *(Text(f"cannot ask {why}", style="red") for why in failed))
    if live is not None:
        live.update(drawn, refresh=True)
    elif console.is_terminal:
        console.print(drawn)
    else:
        Output(width=_WIDE, highlight=False).print(drawn)  # for a program: no name is cut off
