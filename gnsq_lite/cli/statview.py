"""Builds the table of channels that ``gnsq-lite stat`` prints, for the width of the terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gnsq_lite.cli.output import visible

BARS = "▁▂▃▄▅▆▇█"

#: Number of samples in a sparkline.
WIDTH = 16

#: Minimum width of a name.  On a terminal too narrow for this width, columns of numbers are left out.
_NAME = 20

#: Spaces between two columns.
_GAP = 2

Key = tuple[str, str]


@dataclass
class Row:
    """One channel, or a topic without channels, summed over all nsqds."""

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
    #: Messages per second since the previous sample, or None in the channel's first sample.
    rate: float | None = None
    memory_depth: int = 0
    disk_depth: int = 0
    #: Whether the channel is ephemeral and its queue is full on one of the nsqds, which drops further messages.
    full: bool = False
    #: The words "no consumers", "drops" (full), "times out" (messages timed out since the previous sample), "paused".
    state: str = ""


def sparkline(values: Iterable[float]) -> str:
    """Convert the values to a line of bars.  The highest value is a full bar."""
    known = list(values)
    top = max(known, default=0.0)
    if top <= 0:
        return BARS[0] * len(known)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in known)


class History:
    """The last counters and rates of each channel."""

    def __init__(self) -> None:
        self._last: dict[Key, Row] = {}
        self._at: float | None = None
        self.rates: dict[Key, deque[float]] = {}

    def add(self, rows: list[Row], now: float) -> None:
        """Set each row's rate since the previous sample, and its state."""
        elapsed = None if self._at is None else max(now - self._at, 1e-9)
        for row in rows:
            key = (row.topic, row.channel)
            last = self._last.get(key)
            if elapsed is not None and last is not None:
                row.rate = max(0, row.messages - last.messages) / elapsed
                self.rates.setdefault(key, deque(maxlen=WIDTH)).append(row.rate)
            states = {
                "no consumers": bool(row.channel) and not row.clients,
                "drops": row.full,
                "times out": last is not None and row.timed_out > last.timed_out,
                "paused": row.paused,
            }
            row.state = ", ".join(state for state, holds in states.items() if holds)
            self._last[key] = row
        self._at = now


#: Heading -> function that formats a cell.  A narrow terminal omits the last columns first.
_CELLS: dict[str, Callable[[Row], str]] = {
    "state": lambda row: row.state,
    "depth": lambda row: f"{row.depth:,}",
    "msgs/s": lambda row: "-" if row.rate is None else f"{row.rate:,.0f}",
    "in flight": lambda row: f"{row.in_flight:,}",
    "clients": lambda row: str(row.clients),
    "deferred": lambda row: f"{row.deferred:,}",
    "requeued": lambda row: f"{row.requeued:,}",
    "timed out": lambda row: f"{row.timed_out:,}",
    "messages": lambda row: f"{row.messages:,}",
    "mem": lambda row: f"{row.memory_depth:,}",
    "disk": lambda row: f"{row.disk_depth:,}",
    "nsqds": lambda row: str(row.nsqds),
}


def table(
    rows: list[Row], rates: Mapping[Key, Iterable[float]], width: int, height: int | None = None
) -> list[RenderableType]:
    """Return a table of at most *width* characters and *height* lines (None: no limit), and the notes below the table.

    Numbers are never cut.  A note names the columns that do not fit.  If there are too many channels, the channels
    with the highest depth are shown.
    """
    shown = rows if height is None else sorted(rows, key=lambda row: -row.depth)[: max(1, height - 4)]
    shown = sorted(shown, key=lambda row: (row.topic, row.channel))
    cells = {name: [text(row) for row in shown] for name, text in _CELLS.items()}
    if not any(cells["state"]):
        del cells["state"]
    cells["last samples"] = [sparkline(rates.get((row.topic, row.channel), ())) for row in shown]
    names = [(visible(row.topic), visible(row.channel) or "(no channel)") for row in shown]
    left = width - 2 * (_NAME + _GAP)
    used: list[str] = []
    for name, column in cells.items():
        needs = _width(name, column) + _GAP
        if needs <= left:
            used.append(name)
            left -= needs
    room = left + 2 * _NAME
    channels = min(_width("channel", [channel for _, channel in names]), room // 2)
    found = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    found.add_column("topic", no_wrap=True, overflow="ellipsis", max_width=room - channels)
    found.add_column("channel", no_wrap=True, overflow="ellipsis", max_width=channels)
    for name in used:
        found.add_column(name, no_wrap=True, justify="left" if name in ("state", "last samples") else "right")
    for number, row in enumerate(shown):
        style = "red" if row.depth and row.channel and not row.clients else "yellow" if row.depth else ""
        found.add_row(*names[number], *(cells[each][number] for each in used), style=style)
    missing = [name for name in cells if name not in used]
    notes = ["yellow: messages are queued; red: messages are queued and no client is connected"]
    notes += [f"no room for: {', '.join(missing)}"] if missing else []
    notes += (
        [f"{len(rows) - len(shown)} more channels with a smaller depth; select with --topic"]
        if len(shown) < len(rows)
        else []
    )
    return [found, *(Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes)]


def _width(name: str, column: Iterable[str]) -> int:
    return max(len(name), *map(len, column), 0)
