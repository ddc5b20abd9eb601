"""Latency against rate: ``python -m benchmarks.latency measure`` writes the data, ``plot`` draws them for the docs."""

from __future__ import annotations

import argparse
import json
import math
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.cases import IMPLEMENTATIONS, latency
from benchmarks.environments import Unavailable, versions
from benchmarks.measure import Bench, Failed, Settings, machine

DATA = Path(__file__).parent / "latency.json"
PLOT = Path(__file__).parent.parent / "docs" / "images" / "latency.svg"

RATES = (50, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
#: What is drawn, by what the benchmark calls it; pynsq is not asked for more messages than it can take.
CLIENTS = {
    "gnsq_lite-greenlet": "gnsq_lite",
    "gnsq_lite-bulk": 'gnsq_lite, delivery="bulk"',
    "go-nsq": "go-nsq",
    "pynsq": "pynsq",
}
_MOST = {"pynsq": 5_000}


def measure(seconds: float) -> dict[str, Any]:
    """Return p50 and p99 in milliseconds of each client at each rate; interleaved, on one nsqd."""
    bench = Bench(Settings(server="nsqd", latency_seconds=seconds))
    found: dict[str, Any] = {name: {} for name in CLIENTS}
    try:
        for rate in RATES:
            for client in IMPLEMENTATIONS:
                if client.name not in CLIENTS or rate > _MOST.get(client.name, rate):
                    continue
                try:
                    result = bench.measure(client, latency(rate, 200))
                except (Failed, Unavailable) as error:
                    print(f"{client.name} at {rate}: {error}")
                    continue
                found[client.name][str(rate)] = {q: round(1000 * result[q], 3) for q in ("p50", "p99")}
                print(client.name, rate, found[client.name][str(rate)], flush=True)
    finally:
        bench.close()
    return {"max_in_flight": 200, "machine": machine(), "versions": versions(), "clients": found}


# -- the plot

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 40, 190, 50
_LEAST, _GREATEST = 0.1, 300.0
_COLORS = {"gnsq_lite-greenlet": "#2a7f62", "gnsq_lite-bulk": "#7fb8a4", "go-nsq": "#c05b2b", "pynsq": "#6b7aa1"}


def _x(rate: float) -> float:
    share = math.log(rate / RATES[0]) / math.log(RATES[-1] / RATES[0])
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(milliseconds: float) -> float:
    inside = min(max(milliseconds, _LEAST), _GREATEST)
    share = math.log(inside / _LEAST) / math.log(_GREATEST / _LEAST)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def svg(data: dict[str, Any]) -> str:
    """Return the plot: p50 as lines, p99 as dashes; both axes logarithmic."""
    parts = [f'<text x="8" y="20" class="h">Publish to handler, max_in_flight {data["max_in_flight"]}</text>']
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in (0.1, 1, 10, 100):
        y = _y(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="g"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g} ms</text>')
    for rate in RATES:
        parts.append(f'<text x="{_x(rate):.1f}" y="{bottom + 18}" text-anchor="middle">{rate:,}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">messages per second</text>')
    for number, (name, label) in enumerate(CLIENTS.items()):
        points, color = data["clients"][name], _COLORS[name]
        for quantile, style in (("p50", ""), ("p99", ' stroke-dasharray="3 4"')):
            line = " ".join(f"{_x(int(r)):.1f},{_y(p[quantile]):.1f}" for r, p in points.items())
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{style}/>')
        y = _TOP + 20 * number
        parts.append(f'<line x1="{right + 12}" y1="{y}" x2="{right + 34}" y2="{y}" stroke="{color}" stroke-width="3"/>')
        parts.append(f'<text x="{right + 40}" y="{y + 4}">{escape(label)}</text>')
    parts.append(f'<text x="{right + 12}" y="{_TOP + 20 * len(CLIENTS) + 8}">line: p50, dashes: p99</text>')
    style = "text{font:12px sans-serif;fill:#222}.h{font:bold 15px sans-serif}.g{stroke:#ddd}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Measure, or plot what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("act", choices=("measure", "plot"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    args = parser.parse_args()
    if args.act == "measure":
        DATA.write_text(json.dumps(measure(args.seconds), indent=1) + "\n")
    PLOT.write_text(svg(json.loads(DATA.read_text())))


if __name__ == "__main__":
    main()
