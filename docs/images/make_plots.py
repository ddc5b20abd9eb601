"""Draws the README's plots from the records of the last runs: benchmarks/README.rst and benchmarks/latency.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from drawing import Drawing

TABLES = Path(__file__).parent.parent.parent / "benchmarks" / "README.rst"
LATENCIES = TABLES.parent / "latency.json"
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


def table(text: str, title: str) -> dict[str, dict[str, str]]:
    """Return a table of benchmarks/README.rst: client -> column -> cell."""
    part = text[text.index(f".. table:: {title} (") :]
    lines = [line.strip() for line in part.splitlines()[2:]]
    rules = [at for at, line in enumerate(lines) if line.startswith("===")][:3]
    head, *rows = (re.split(r"\s{2,}", line) for line in lines[rules[0] + 1 : rules[2]] if not line.startswith("==="))
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def measured(text: str, title: str) -> str:
    """Return when and where a table was measured: its caption says it, or else the whole run does."""
    said = re.search(rf"^\.\. table:: {re.escape(title)} \(.* rounds; (.+)\)$", text, re.M)
    if said is not None:
        return said[1]
    when, cpu_name, cores = re.findall(r"Run of ([\d-]+): ([^,]+), (\d+) cores", text)[0]
    return f"{when}, {cpu_name}, {cores} cores"


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


def cpu(text: str, title: str) -> list[Bar]:
    """Return the bars of messages per CPU-second."""
    rows = table(text, title)
    values = {CLIENTS[name]: number(rows[name]["median"]) for name in CLIENTS if name in rows}
    return [(name, value, short(value)) for name, value in sorted(values.items(), key=lambda each: -each[1])]


def latency(text: str, title: str) -> list[Bar]:
    """Return the bars of the median latency, with the 99th percentile in the label."""
    rows = table(text, title)
    bars = []
    for name, shown in CLIENTS.items():
        middle, high = rows[name]["p50, ms"], rows[name]["p99, ms"]
        bars.append((shown, number(middle), f"{middle} ms ({high})"))
    return sorted(bars, key=lambda bar: bar[1])


def latency_at(rate: int) -> tuple[str, list[Bar]]:
    """Return the machine, and the bars of the latency at *rate* messages a second, as ``benchmarks.latency`` has it."""
    record = json.loads(LATENCIES.read_text(encoding="utf-8"))
    found = {name: values[str(rate)] for name, values in record["clients"].items()}
    shown = {**CLIENTS, "gnsq_lite-greenlet": "gnsq_lite", "gnsq_lite-bulk": "gnsq_lite, bulk"}
    bars = [(shown[name], each["p50"], f"{each['p50']:.3g} ms ({each['p99']:.3g})") for name, each in found.items()]
    return f"{record['machine']['cpu']}, {record['machine']['cores']} cores", sorted(bars, key=lambda bar: bar[1])


def plots() -> dict[str, Drawing]:
    """Return file name -> plot."""
    text = TABLES.read_text(encoding="utf-8")
    machine, at_500 = latency_at(500)
    consuming, publishing = "consume, max_in_flight 200, 100 bytes", "publish one at a time, 100 bytes"
    one_in_flight = "latency at 500 messages/s, max_in_flight 1"
    return {
        "plot-cpu.svg": picture(
            "Messages per CPU-second of the client (longer is better)",
            (
                f"Medians.  Left: {measured(text, consuming)}.  Right: {measured(text, publishing)}.",
                "nsqd 1.3.0 on loopback, 100-byte bodies, default options but for max_in_flight.",
            ),
            [
                ("Consuming, max_in_flight 200", cpu(text, consuming)),
                ("Publishing, one at a time", cpu(text, publishing)),
            ],
        ),
        "plot-latency.svg": picture(
            "From publish to handler at 500 messages a second: median, and 99 % in brackets (shorter is better)",
            (
                f"Left, {machine}: gnsq_lite keeps RDY so that nsqd sends at once; others wait for nsqd's buffer.",
                f"Right: {measured(text, one_in_flight)}.  nsqd 1.3.0 on loopback, 100-byte bodies.",
            ),
            [
                ("max_in_flight 200", at_500),
                ("max_in_flight 1: nothing is buffered", latency(text, one_in_flight)),
            ],
        ),
    }


def main() -> None:
    """Write the plots beside this file."""
    for name, plot in plots().items():
        (Path(__file__).parent / name).write_text(plot.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
