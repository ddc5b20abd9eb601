"""Draws stat.svg: what ``gnsq-lite stat`` shows of an embedded broker with some life in it."""

from __future__ import annotations

import io
import math
from pathlib import Path

from rich.console import Console

from gnsq_lite.cli.statview import History, Row, table

SAMPLES = 16


def main() -> None:
    """Write the picture beside this file."""
    history = History()
    rows: list[Row] = []
    shapes = {
        ("orders", "billing"): 900.0,
        ("orders", "archive"): 900.0,
        ("clicks", "spark"): 12_000.0,
        ("mail", ""): 3.0,
    }
    total = dict.fromkeys(shapes, 0.0)
    for sample in range(SAMPLES + 1):
        rows = []
        for number, (key, size) in enumerate(shapes.items()):
            total[key] += size * (1.2 + math.sin(sample / 2 + number)) * 2.0
            rows.append(Row(*key, messages=int(total[key]), clients=2 if key[1] else 0, nsqds=3))
        history.add(rows, 2.0 * sample)
    rows[0].depth, rows[0].in_flight, rows[3].depth = 1_250, 200, 52
    rows[1].deferred, rows[1].requeued = 7, 19
    console = Console(record=True, width=140, file=io.StringIO(), force_terminal=True)
    for part in table(rows, history.rates, console.width):
        console.print(part)
    console.save_svg(str(Path(__file__).with_name("stat.svg")), title="gnsq-lite stat")


if __name__ == "__main__":
    main()
