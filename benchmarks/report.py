"""Writes results as JSON, as plain text and as the tables of README.rst."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Result = dict[str, Any]
"""A case: kind, title, server, rounds, rows as {client: [measured, ...]}, failed as {client: reason}."""


def number(value: float) -> str:
    """Return *value* with three significant digits and commas."""
    if value >= 100:
        digits = max(0, len(str(int(value))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def _median(name: str) -> Callable[[list[Result]], str]:
    return lambda measured: number(statistics.median(each[name] for each in measured))


def _latency(measured: list[Result]) -> str:
    p50, p99 = (statistics.median(1000 * each[name] for each in measured) for name in ("p50", "p99"))
    return f"{number(p50)} ({number(p99)})"


#: kind -> the tables of this kind, as (title, function that returns the text of a cell).
TABLES: dict[str, list[tuple[str, Callable[[list[Result]], str]]]] = {
    "consume": [("Consume: messages per CPU-second, by max_in_flight", _median("value"))],
    "publish": [("Publish: messages per CPU-second", _median("value"))],
    "latency": [("Latency from publish to handler, max_in_flight 200: p50 (p99) in ms", _latency)],
}


def tables(results: Iterable[Result]) -> Iterable[tuple[str, list[list[str]]]]:
    """Yield each table as (title, rows), with a row for each client and a column for each case."""
    found = list(results)
    for kind, made in TABLES.items():
        cases = [result for result in found if result["kind"] == kind]
        clients = list(dict.fromkeys(client for result in cases for client in result["rows"]))
        for title, cell in made:
            rows = [["client", *(result["title"] for result in cases)]]
            for client in clients:
                cells = (result["rows"].get(client) for result in cases)
                rows.append([client, *("-" if each is None else cell(each) for each in cells)])
            if clients:
                yield title, rows


def rst(run: dict[str, Any]) -> str:
    """Return the generated part of README.rst."""
    about = run["about"]
    rounds = max((result["rounds"] for result in run["results"]), default=0)
    servers = sorted({result["server"] for result in run["results"]})
    lines = [
        f"Run of {about['when']}: {about['machine']['cpu']}, {about['machine']['cores']} cores, load before the run"
        f" {about['machine']['load']}; {', '.join(servers)}; medians of {rounds} rounds.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items())) + ".",
        "",
    ]
    for title, rows in tables(run["results"]):
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        rule = "   " + "  ".join("=" * width for width in widths)
        text = ["   " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f".. table:: {title}", "", rule, text[0], rule, *text[1:], rule, ""]
    for result in run["results"]:
        for client, why in result["failed"].items():
            lines += [f"{result['kind']}, {result['title']}: {client} failed: {why.splitlines()[0]}", ""]
    return "\n".join(lines)


_BEGIN, _END = ".. begin of the generated part", ".. end of the generated part"


def write(run: dict[str, Any], out: Path) -> None:
    """Write ``results.json`` and ``results.rst`` into *out*."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(run, indent=1) + "\n")
    (out / "results.rst").write_text(rst(run))


def update_readme(run: dict[str, Any], readme: Path) -> None:
    """Replace the generated part of *readme*."""
    before, found, rest = readme.read_text().partition(_BEGIN + "\n")
    _old, end, after = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"{readme} has no generated part")
    readme.write_text(f"{before}{_BEGIN}\n\n{rst(run)}\n{_END}{after}")
