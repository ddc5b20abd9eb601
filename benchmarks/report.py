"""Results to text, JSON, reStructuredText and a plot; nothing but the standard library."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

#: What the tables compare with: a ratio is the median of the rounds' ratios.
REFERENCES = ("raw-gevent", "go-nsq", "gnsq")
#: On Youzan's servers.
YOUZAN_REFERENCES = ("raw-youzan", "youzan-go-nsq")

Result = dict[str, Any]
"""A case: title, group, unit, server, rows: {client: {values: [...], ...}}, failed: {client: why}."""


def number(value: float) -> str:
    """Return *value* with three significant digits and commas."""
    if value >= 100:
        digits = max(0, len(str(int(value))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def ratio(result: Result, client: str, reference: str) -> float | None:
    """Return the median over the rounds of client / reference, or None where one of them is missing."""
    mine, theirs = (result["rows"].get(name, {}).get("values", []) for name in (client, reference))
    pairs = [a / b for a, b in zip(mine, theirs, strict=False) if b]
    return statistics.median(pairs) if pairs and client != reference else None


def rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a case's table, best first."""
    if result["group"] == "latency":
        return _latency_rows(result)
    if result["group"] == "idle":
        return _idle_rows(result)
    references = YOUZAN_REFERENCES if result["group"] == "youzan" else REFERENCES
    head = ["client", "median", "min", "max", "wall, per second", "growth, KiB", *(f"/ {name}" for name in references)]
    table = []
    ordered = sorted(result["rows"].items(), key=lambda row: -statistics.median(row[1]["values"]))
    for client, row in ordered:
        values = row["values"]
        cells = [client, number(statistics.median(values)), number(min(values)), number(max(values))]
        cells.append(number(statistics.median(row["per_second"])) if row["per_second"] else "")
        growth = [(raw["rss_end"] - raw["rss_start"]) / 1024 for raw in row["raw"]]
        cells.append(f"{statistics.median(growth):.0f}" if growth else "")
        for name in references:
            found = ratio(result, client, name)
            cells.append("" if found is None else f"{found:.2f}")
        table.append(cells)
    return head, table


def _latency_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    head = ["client", "p50, ms", "p50 min", "p50 max", "p90, ms", "p99, ms", "max, ms"]
    table = []
    for client, row in sorted(result["rows"].items(), key=lambda row: statistics.median(row[1]["values"])):
        values = [1000 * value for value in row["values"]]
        cells = [client, f"{statistics.median(values):.3g}", f"{min(values):.3g}", f"{max(values):.3g}"]
        for name in ("p90", "p99", "max"):
            cells.append(f"{1000 * statistics.median(raw[name] for raw in row['raw']):.3g}")
        table.append(cells)
    return head, table


def _idle_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    head = ["client", "CPU seconds per minute", "min", "max", "memory of the process, MiB"]
    table = []
    for client, row in sorted(result["rows"].items(), key=lambda row: statistics.median(row[1]["values"])):
        values = row["values"]
        memory = statistics.median(raw["rss_end"] for raw in row["raw"]) / 2**20
        table.append([client, *(f"{pick(values):.3f}" for pick in (statistics.median, min, max)), f"{memory:.1f}"])
    return head, table


def text(result: Result) -> str:
    """Return a case as plain text."""
    head, table = rows(result)
    widths = [max(len(line[n]) for line in [head, *table]) for n in range(len(head))]
    lines = [f"{result['title']}  [{result['unit']}; server: {result['server']}; {result['rounds']} rounds]"]
    for line in [head, *table]:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        lines.append("  ".join([line[0].ljust(len(first)), *others]))
    lines += [f"{client}: {why.splitlines()[0]}" for client, why in result["failed"].items()]
    return "\n".join(lines)


def rst_table(title: str, head: list[str], table: Iterable[list[str]]) -> list[str]:
    """Return a reStructuredText table."""
    filled = [[cell or "-" for cell in row] for row in [head, *table]]
    widths = [max(len(row[n]) for row in filled) for n in range(len(head))]
    rule = "   " + "  ".join("=" * width for width in widths)
    lines = [
        "   " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in filled
    ]
    return [f".. table:: {title}", "", rule, lines[0], rule, *lines[1:], rule, ""]


def rst(run: dict[str, Any]) -> str:
    """Return the generated part of the README."""
    about = run["about"]
    lines = [
        f"Run of {about['when']}: {about['machine']['cpu']}, {about['machine']['cores']} cores, Linux"
        f" {about['machine']['kernel']}, load before the run {about['machine']['load']}.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items())) + ".",
        "",
    ]
    for group in dict.fromkeys(result["group"] for result in run["results"]):
        title = _GROUPS[group]
        lines += [title, "~" * len(title), ""]
        if group == "scale":
            lines += _scale_table([result for result in run["results"] if result["group"] == group])
            continue
        for result in run["results"]:
            if result["group"] == group:
                head, table = rows(result)
                caption = f"{result['title']} ({result['unit']}; {result['server']}; {result['rounds']} rounds)"
                lines += rst_table(caption, head, table)
                for client, why in result["failed"].items():
                    lines += [f"{client}: {why.splitlines()[0]}", ""]
        if group == "idle":
            lines += _memory_table([result for result in run["results"] if result["group"] == group])
    return "\n".join(lines)


_GROUPS = {
    "consume": "Consuming",
    "publish": "Publishing",
    "latency": "Latency from publish to handler",
    "work": "Handlers that take time",
    "idle": "Idle connections",
    "youzan": "Youzan's servers",
    "scale": "How the cost grows",
    "codec": "Decode and encode alone",
    "rules": "Rules under load",
}


def _scale_table(results: list[Result]) -> list[str]:
    clients = list(dict.fromkeys(client for result in results for client in result["rows"]))
    head = ["microseconds of CPU per message", *clients]
    table = []
    for result in results:
        cells = [result["title"]]
        for client in clients:
            values = [1e6 / value for value in result["rows"].get(client, {}).get("values", [])]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "")
        table.append(cells)
    return rst_table(f"Against the pump; {results[0]['rounds']} rounds: median (min to max)", head, table)


def _memory_table(results: list[Result]) -> list[str]:
    if len(results) != 2:
        return []
    few, many = results
    table = []
    for client in many["rows"]:
        if client in few["rows"]:
            one, hundred = (
                statistics.median(raw["rss_end"] for raw in result["rows"][client]["raw"]) for result in (few, many)
            )
            table.append([client, f"{(hundred - one) / 99 / 1024:.1f}"])
    table.sort(key=lambda row: float(row[1]))
    return rst_table("Memory per idle connection (100 less 1, by 99)", ["client", "KiB"], table)


# -- the plot ---------------------------------------------------------------------------------------------------------

_WIDTH, _BAR, _LEFT, _RIGHT = 860, 18, 170, 110


def svg(results: list[Result], title: str) -> str:
    """Return bars of the medians, one block per case, each with a line from the least to the greatest."""
    parts: list[str] = []
    y = 34
    for result in results:
        ordered = sorted(result["rows"].items(), key=lambda row: -statistics.median(row[1]["values"]))
        if not ordered:
            continue
        top = max(max(row["values"]) for _client, row in ordered)
        scale = (_WIDTH - _LEFT - _RIGHT) / top
        parts.append(f'<text x="8" y="{y + 14}" class="t">{escape(result["title"])}</text>')
        y += 22
        for client, row in ordered:
            values = row["values"]
            parts += _bar(client, statistics.median(values), min(values), max(values), scale, y)
            y += _BAR + 4
        y += 14
    style = (
        "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.h{font:bold 15px sans-serif}"
        ".o{fill:#2a7f62}.p{fill:#9aa5b1}.r{fill:#d9dee4}line{stroke:#222;stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="8" y="20" class="h">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _bar(client: str, median: float, least: float, most: float, scale: float, y: int) -> list[str]:
    kind = "o" if client.startswith("gnsq_lite") else "r" if client.startswith("raw") else "p"
    middle = y + _BAR / 2
    low, high = _LEFT + least * scale, _LEFT + most * scale
    return [
        f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(client)}</text>',
        f'<rect x="{_LEFT}" y="{y}" width="{median * scale:.1f}" height="{_BAR}" class="{kind}"/>',
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>',
        *(f'<line x1="{x:.1f}" y1="{middle - 4}" x2="{x:.1f}" y2="{middle + 4}"/>' for x in (low, high)),
        f'<text x="{high + 6:.1f}" y="{y + 13}">{number(median)}</text>',
    ]


# -- files ------------------------------------------------------------------------------------------------------------

_BEGIN, _END = ".. begin of the generated part", ".. end of the generated part"


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return *new* with those cases of *old* that it does not have, in *old*'s order; each case stays whole."""
    fresh = {result["title"]: result for result in new["results"]}
    results = [fresh.pop(result["title"], result) for result in old["results"]]
    return {**new, "results": [*results, *fresh.values()]}


def write(run: dict[str, Any], out: Path) -> None:
    """Write ``results.json``, ``results.txt`` and the plots into *out*."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(run, indent=1) + "\n")
    (out / "results.txt").write_text("\n\n".join(text(result) for result in run["results"]) + "\n")
    for name, plot in plots(run):
        (out / name).write_text(plot)


def plots(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the plots as (file name, SVG)."""
    found = []
    for group, title in (("consume", "Consume"), ("publish", "Publish")):
        results = [result for result in run["results"] if result["group"] == group and result["chart"]]
        if results:
            found.append((f"benchmarks-{group}.svg", svg(results, f"{title}: messages per CPU-second of the client")))
    return found


def update_readme(run: dict[str, Any], readme: Path, images: Path) -> None:
    """Replace the generated part of *readme*, and write the plots beside the other images."""
    before, found, rest = readme.read_text().partition(_BEGIN + "\n")
    _old, end, after = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"{readme} has no generated part")
    readme.write_text(f"{before}{_BEGIN}\n\n{rst(run)}\n{_END}{after}")
    images.mkdir(parents=True, exist_ok=True)
    for name, plot in plots(run):
        (images / name).write_text(plot)
