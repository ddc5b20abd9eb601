"""Draws the README's plots from the tables of benchmarks/README.rst."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from drawing import Drawing

TABLES = Path(__file__).parent.parent.parent / "benchmarks" / "README.rst"
#: Row of a table -> what the plot calls it.
CLIENTS = {
    "gnsq_lite-greenlet": "gnsq_lite, greenlets",
    "gnsq_lite-thread": "gnsq_lite, threads",
    "go-nsq": "go-nsq",
    "pynsq": "pynsq",
    "gnsq": "gnsq",
}
Bar = tuple[str, float, str]
_LEFT, _ROW = 140, 30


def column(text: str, title: str, case: str) -> dict[str, str]:
    """Return a column of a table of benchmarks/README.rst: client -> cell."""
    part = text[text.index(f".. table:: {title}\n") :]
    lines = [line.strip() for line in part.splitlines()[2:]]
    rules = [at for at, line in enumerate(lines) if line.startswith("===")][:3]
    head, *rows = (re.split(r"\s{2,}", line) for line in lines[rules[0] + 1 : rules[2]] if not line.startswith("==="))
    return {row[0]: row[head.index(case)] for row in rows if row[0] in CLIENTS}


def number(cell: str) -> float:
    """Return a cell's number."""
    return float(cell.replace(",", ""))


def panel(d: Drawing, x: float, width: float, title: str, bars: list[Bar]) -> None:
    """Draw one set of bars; each is (name, value, label)."""
    d.text(x, 56, title, "soft")
    most = max(value for _, value, _ in bars)
    for at, (name, value, label) in enumerate(bars):
        y = 70 + at * _ROW
        ours = name.startswith("gnsq_lite")
        long = max(2.0, (width - _LEFT - 112) * value / most)
        d.text(x + _LEFT - 8, y + 15, name, "" if ours else "soft", "end")
        fill = "good" if ours else "line"
        d.add(f'<rect x="{x + _LEFT:g}" y="{y}" width="{long:.1f}" height="21" rx="4" style="fill:var(--{fill})"/>')
        d.text(x + _LEFT + long + 7, y + 15, label, "bold" if ours else "soft")


def picture(title: str, notes: tuple[str, str], panels: list[tuple[str, list[Bar]]]) -> Drawing:
    """Return a picture of two panels."""
    rows = max(len(bars) for _, bars in panels)
    d = Drawing(860, 70 + rows * _ROW + 54, title)
    d.text(14, 26, title, "bold")
    for at, (name, bars) in enumerate(panels):
        panel(d, 14 + at * 424, 410, name, bars)
    for at, note in enumerate(notes):
        d.text(14, 70 + rows * _ROW + 20 + at * 18, note, "soft")
    return d


def short(value: float) -> str:
    """Return a rate as people say it."""
    return f"{value / 1e6:.2f} million" if value >= 1e6 else f"{value:,.0f}"


def cpu(cells: dict[str, str]) -> list[Bar]:
    """Return the bars of messages per CPU-second."""
    values = {CLIENTS[name]: number(cell) for name, cell in cells.items()}
    return [(name, value, short(value)) for name, value in sorted(values.items(), key=lambda each: -each[1])]


def latency(cells: dict[str, str]) -> list[Bar]:
    """Return the bars of the median latency, with the 99th percentile in the label."""
    bars = [(CLIENTS[name], number(cell.split()[0]), cell.replace(" (", " ms (")) for name, cell in cells.items()]
    return sorted(bars, key=lambda bar: bar[1])


def plots() -> dict[str, Drawing]:
    """Return file name -> plot."""
    text = TABLES.read_text(encoding="utf-8")
    (when, machine, cores) = re.findall(r"Run of ([\d-]+): ([^,]+), (\d+) cores", text)[0]
    note = f"Medians; {when}, {machine}, {cores} cores; nsqd 1.3.0 on loopback, 100-byte bodies."
    latencies = "Latency from publish to handler, max_in_flight 200: p50 (p99) in ms"
    consuming = column(text, "Consume: messages per CPU-second, by max_in_flight", "200")
    publishing = column(text, "Publish: messages per CPU-second", "1 caller")
    return {
        "plot-cpu.svg": picture(
            "Messages per CPU-second of the client (longer is better)",
            (note, "Default options but for max_in_flight."),
            [("Consuming, max_in_flight 200", cpu(consuming)), ("Publishing, one at a time", cpu(publishing))],
        ),
        "plot-latency.svg": picture(
            "From publish to handler at 500 messages a second: median, and 99 % in brackets (shorter is better)",
            (note, "Left: gnsq_lite keeps RDY so that nsqd sends at once; others wait for nsqd's buffer."),
            [
                ("max_in_flight 200", latency(column(text, latencies, "500/s"))),
                ("max_in_flight 1: nothing is buffered", latency(column(text, latencies, "500/s, 1 in flight"))),
            ],
        ),
    }


def main() -> None:
    """Write the plots beside this file."""
    for name, plot in plots().items():
        (Path(__file__).parent / name).write_text(plot.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
