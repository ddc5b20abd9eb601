"""``python -m benchmarks`` measures gnsq_lite and other clients, and writes tables.

``python -m benchmarks versions OTHER_CHECKOUT`` compares this checkout with another one.
``python -m benchmarks spark`` measures the Spark source and sink.
``python -m benchmarks free_threads`` compares handler threads with processes.  Each command has ``--help``.
"""

from __future__ import annotations

import argparse
import datetime
import runpy
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cases import IMPLEMENTATIONS, Case, Implementation, all_cases
from benchmarks.environments import OUT, Unavailable, versions
from benchmarks.measure import Bench, Failed, Settings, machine

HERE = Path(__file__).parent
OTHERS = {
    "versions": "benchmarks.versions",
    "spark": "benchmarks.spark.__main__",
    "free_threads": "benchmarks.free_threads",
}


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    out = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--only", type=_names, metavar="KIND,..", help="consume publish latency")
    out.add_argument("--impl", type=_names, metavar="NAME,..", help="clients; gnsq_lite means all gnsq_lite-* clients")
    out.add_argument("--case", help="only cases whose title contains this text")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--seconds", type=float, default=0.8, help="approximate duration of a measurement")
    out.add_argument("--messages", type=int, help="messages of a measurement, instead of --seconds")
    out.add_argument("--no-pin", action="store_true", help="let the system choose cores, for clients and servers")
    out.add_argument("--quick", action="store_true", help="one tiny round without peers, to check that it works")
    out.add_argument("--out", type=Path, default=OUT, help="folder of the results (default benchmarks/out)")
    out.add_argument("--update-readme", action="store_true", help="put the tables into README.rst")
    out.add_argument("--list", action="store_true", help="list cases and clients, and measure nothing")
    return out


def chosen_clients(args: argparse.Namespace) -> list[Implementation]:
    """Return the clients to measure.  Raises SystemExit for an unknown name."""
    if not args.impl:
        return [i for i in IMPLEMENTATIONS if not args.quick or i.ours or i.name == "raw"]
    found: list[Implementation] = []
    for name in args.impl:
        same = [i for i in IMPLEMENTATIONS if i.name == name or (name == "gnsq_lite" and i.ours)]
        if not same:
            raise SystemExit(f"no client {name!r}; there are {', '.join(i.name for i in IMPLEMENTATIONS)}")
        found += same
    return found


def chosen_cases(args: argparse.Namespace) -> list[Case]:
    """Return the cases to measure."""
    return [
        case
        for case in all_cases()
        if (case.quick or not args.quick)
        and (not args.only or case.kind in args.only)
        and (not args.case or args.case in case.title)
    ]


def run_case(bench: Bench, case: Case, clients: list[Implementation], rounds: int) -> report.Result:
    """Measure one case.  Each round runs every client once, so that other load affects all clients equally."""
    result: report.Result = {"kind": case.kind, "title": case.title, "server": bench.server_name, "rounds": rounds}
    result.update(rows={}, failed={})
    for _round in range(rounds):
        for client in clients:
            if not case.takes(client) or client.name in result["failed"]:
                continue
            try:
                measured = bench.measure(client, case)
            except (Failed, Unavailable) as error:
                result["failed"][client.name] = str(error)
                result["rows"].pop(client.name, None)
                print(f"{case.kind}, {case.title}: {error}", file=sys.stderr)
                continue
            result["rows"].setdefault(client.name, []).append(measured)
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command line.  Return 1 if gnsq_lite failed in a case, else 0."""
    args = parser().parse_args(argv)
    clients, cases = chosen_clients(args), chosen_cases(args)
    if args.list:
        print("clients:", *(client.name for client in clients), sep="\n  ")
        print("cases:", *(f"{case.kind}: {case.title}" for case in cases), sep="\n  ")
        return 0
    settings = Settings(seconds=args.seconds, messages=args.messages, pin=not args.no_pin)
    if args.quick:
        args.rounds, settings = 1, Settings(messages=args.messages or 2000, linger=0.05)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    run: dict[str, Any] = {"about": {"when": when, "machine": machine(), "versions": versions()}, "results": []}
    bench = Bench(settings)
    try:
        for case in cases:
            result = run_case(bench, case, clients, args.rounds)
            run["results"].append(result)
            report.write(run, args.out)
            for title, rows in report.tables([result]):
                print(title, *("  ".join(row) for row in rows), sep="\n  ", flush=True)
    finally:
        bench.close()
    print(f"written: {args.out}/results.json and results.rst")
    if args.update_readme:
        report.update_readme(run, HERE / "README.rst")
    return int(any(name.startswith("gnsq_lite") for result in run["results"] for name in result["failed"]))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        module = OTHERS[sys.argv.pop(1)]
        runpy.run_module(module, run_name="__main__")
    else:
        sys.exit(main())
