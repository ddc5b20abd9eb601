"""How ``gnsq-lite stat`` shows its rows: as a table that fits, or as nsq_stat's lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from gnsq_lite.cli.output import visible

BARS = "▁▂▃▄▅▆▇█"

#: Samples a sparkline shows.
WIDTH = 16

#: Characters of a name that are kept before a column of low priority is.
_NAME = 20

Key = tuple[str, str]


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
    memory_depth: int = 0
    disk_depth: int = 0


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
        self._last: dict[Key, int] = {}
        self._at: float | None = None
        self.rates: dict[Key, deque[float]] = {}

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


#: Name -> what stands there, in the order on the screen.
_NUMBERS: dict[str, Callable[[Row], str]] = {
    "depth": lambda row: f"{row.depth:,}",
    "mem": lambda row: f"{row.memory_depth:,}",
    "disk": lambda row: f"{row.disk_depth:,}",
    "in flight": lambda row: f"{row.in_flight:,}",
    "deferred": lambda row: f"{row.deferred:,}",
    "requeued": lambda row: f"{row.requeued:,}",
    "timed out": lambda row: f"{row.timed_out:,}",
    "messages": lambda row: f"{row.messages:,}",
    "msgs/s": lambda row: "-" if row.rate is None else f"{row.rate:,.0f}",
    "last samples": lambda row: "",
    "clients": lambda row: str(row.clients),
    "nsqds": lambda row: str(row.nsqds),
}
#: What is left out last comes first.
_PRIORITY = (
    "depth",
    "msgs/s",
    "in flight",
    "clients",
    "deferred",
    "requeued",
    "timed out",
    "messages",
    "last samples",
    "mem",
    "disk",
    "nsqds",
)


def table(rows: list[Row], rates: Mapping[Key, Iterable[float]], width: int, height: int | None = None) -> list[Text]:
    """Return lines of at most *width* characters, and at most *height* of them.

    No number is cut: what does not fit is left out, column by column, and named below; a long name loses its middle.
    """
    most = len(rows) if height is None else max(1, height - 4)
    shown = sorted(sorted(rows, key=lambda row: -row.depth)[:most], key=lambda row: (row.topic, row.channel))
    cells: dict[str, list[str]] = {
        "topic": [visible(row.topic) for row in shown],
        "channel": [_channel(row) for row in shown],
        **{name: [of(row) for row in shown] for name, of in _NUMBERS.items()},
        "last samples": [sparkline(rates.get((row.topic, row.channel), ())) for row in shown],
    }
    widths = {name: max(len(name), *(len(cell) for cell in column), 0) for name, column in cells.items()}
    columns = _fitted(widths, width)
    lines = [_line({name: name for name in columns}, columns, "bold")]
    for number, row in enumerate(shown):
        style = "red" if row.depth and row.channel and not row.clients else "yellow" if row.depth else ""
        lines.append(_line({name: cells[name][number] for name in columns}, columns, style))
    lines.append(Text("yellow: messages wait; red: and no client reads them", style="dim"))
    left_out = [name for name in _NUMBERS if name not in columns]
    if left_out:
        lines.append(Text("no room for: " + ", ".join(left_out), style="dim"))
    if len(shown) < len(rows):
        lines.append(Text(f"and {len(rows) - len(shown)} channels of less depth; --topic shows one", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _channel(row: Row) -> str:
    return (visible(row.channel) or "(no channel)") + (" (paused)" if row.paused else "")


def _fitted(widths: dict[str, int], width: int) -> dict[str, int]:
    """Return the columns that fit, in their order, and how wide each is."""
    names = {name: min(widths[name], _NAME) for name in ("topic", "channel")}
    used = sum(names.values()) + 2
    chosen = set()
    for name in _PRIORITY:
        if used + widths[name] + 2 <= width or name == "depth":
            used += widths[name] + 2
            chosen.add(name)
    for name in names:
        more = max(-names[name] + 4, min(width - used, widths[name] - names[name]))
        names[name] += more
        used += more
    return {**names, **{name: widths[name] for name in _NUMBERS if name in chosen}}


def _line(cells: dict[str, str], columns: dict[str, int], style: str) -> Text:
    parts = []
    for name, width in columns.items():
        cell = cells[name]
        is_text = name in ("topic", "channel", "last samples")
        parts.append(_shortened(cell, width).ljust(width) if is_text else cell.rjust(width))
    return Text("  ".join(parts).rstrip(), style=style, no_wrap=True)


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


class Screen:
    """Draws lines over the ones it drew before.

    The cursor waits below them, at the left, so that the ``^C`` that a terminal shows moves nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._height = console, 0

    def draw(self, lines: list[Text]) -> None:
        """Draw *lines*, none of which is wider than the screen."""
        with self._console.capture() as drawn:
            for line in lines:
                self._console.print(line, no_wrap=True, crop=True, overflow="ignore", soft_wrap=False)
        back = f"\x1b[{self._height}A\x1b[J" if self._height else ""
        self._height = len(lines)
        self._console.file.write(back + drawn.get())  # at once: Ctrl-C leaves no half of it
        self._console.file.flush()


_HEAD = f"{'-' * 6}rate{'-' * 6}+{'-' * 16}depth{'-' * 16}+{'-' * 14}metadata{'-' * 15}"


class Lines:
    """nsq_stat's lines of one channel, to the character: headers each 25 lines, the first sample unseen."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last: Row | None = None
        self._count = 0

    def add(self, row: Row) -> list[str]:
        """Return what is to be printed."""
        lines = []
        if self._count % 25 == 0:
            lines.append(_HEAD)
            heads = ("ingress", "egress", "total", "mem", "disk", "inflt", "def", "req", "t-o", "msgs", "clients")
            lines.append(_numbers(heads))
        self._count += 1
        before, self._last = self._last, row
        if before is not None:
            came = row.messages - before.messages
            rates = (int(came / self._interval), int((came - (row.depth - before.depth)) / self._interval))
            depths = (row.depth, row.memory_depth, row.disk_depth, row.in_flight, row.deferred)
            lines.append(_numbers((*rates, *depths, row.requeued, row.timed_out, row.messages, row.clients)))
        return lines


def _numbers(values: tuple[object, ...]) -> str:
    cells = [str(value).rjust(width) for value, width in zip(values, (7, 7, 7, 7, 7, 5, 5, 7, 7, 12, 7), strict=True)]
    return " | ".join((" ".join(cells[:2]), " ".join(cells[2:7]), " ".join(cells[7:])))
