"""``python -m benchmarks``: run everything, or what is named, and write tables, JSON and plots."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cases import IMPLEMENTATIONS, Case, Implementation, all_cases
from benchmarks.environments import OUT, Unavailable, versions
from benchmarks.measure import Bench, Failed, Settings, machine
from benchmarks.server import youzan

HERE = Path(__file__).parent


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[int]:
    return [int(name) for name in _names(text)]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    out = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    out.add_argument(
        "--only", type=_names, metavar="GROUP,..", help="consume publish latency work idle youzan scale codec rules"
    )
    out.add_argument(
        "--impl", type=_names, metavar="NAME,..", help="clients; gnsq_lite means each way of using it (see --list)"
    )
    out.add_argument("--mif", type=_numbers, help="only these max_in_flight")
    out.add_argument("--body", type=_numbers, help="only these body sizes")
    out.add_argument("--codec", type=_names, help="only these: plain, snappy, deflate")
    out.add_argument("--case", help="only cases with this in their title")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--seconds", type=float, default=0.8, help="what a measurement takes, about, without its start")
    out.add_argument("--messages", "--frames", type=int, help="messages of a measurement, instead of --seconds")
    out.add_argument("--server", choices=("auto", "nsqd", "pump"), default="auto")
    out.add_argument("--no-pin", action="store_true", help="let the system choose cores, for clients and servers")
    out.add_argument("--quick", action="store_true", help="one tiny round without peers, on the pump: does it work?")
    out.add_argument("--profile", action="store_true", help="sample where gnsq_lite's time goes; figures are lower")
    out.add_argument("--out", type=Path, default=OUT, help="where the results are written (default benchmarks/out)")
    out.add_argument("--merge", action="store_true", help="keep the cases of earlier runs in --out")
    out.add_argument("--update-readme", action="store_true", help="put the results of --out into README.rst")
    out.add_argument("--list", action="store_true", help="list cases and clients, and measure nothing")
    return out


def chosen_clients(args: argparse.Namespace) -> list[Implementation]:
    """Return the clients to measure.  Raises SystemExit for a name that is none."""
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
        and (not args.only or case.group in args.only)
        and (not args.mif or case.kind != "consume" or case.job["max_in_flight"] in args.mif)
        and (not args.body or case.job.get("body", 100) in args.body)
        and (not args.codec or case.job.get("codec", "plain") in args.codec)
        and (not args.case or args.case in case.title)
        and (case.server != "youzan" or youzan.is_there())
    ]


def run_case(bench: Bench, case: Case, clients: list[Implementation], rounds: int) -> report.Result:
    """Measure one case: every client once, then all again, so that noise meets them alike."""
    result: report.Result = {
        "title": case.title,
        "group": case.group,
        "unit": case.unit,
        "server": bench.server_name(case),
        "chart": case.chart,
        "rounds": min(rounds, case.rounds),
        "rows": {},
        "failed": {},
    }
    for _round in range(result["rounds"]):
        for client in clients:
            if not case.takes(client) or client.name in result["failed"]:
                continue
            try:
                measured = bench.measure(client, case)
            except (Failed, Unavailable) as error:
                result["failed"][client.name] = str(error)
                result["rows"].pop(client.name, None)
                print(f"{case.title}: {error}", file=sys.stderr)
                continue
            row = result["rows"].setdefault(client.name, {"values": [], "per_second": [], "raw": []})
            row["values"].append(measured["value"])
            row["raw"].append(measured)
            if "per_second" in measured:
                row["per_second"].append(measured["per_second"])
    return result


def _settings(args: argparse.Namespace) -> Settings:
    settings = Settings(seconds=args.seconds, messages=args.messages, server=args.server, pin=not args.no_pin)
    if args.quick:
        settings = Settings(
            messages=args.messages or 2000,
            server="pump",
            idle_seconds=0.2,
            latency_messages=100,
            settle=0.5,
            linger=0.05,
            patience=40.0,
        )
    if args.profile:
        args.out.mkdir(parents=True, exist_ok=True)
        settings.profile = (args.out / "profile.txt").resolve()
    return settings


def main(argv: list[str] | None = None) -> int:
    """Run; return 1 where gnsq_lite failed, 0 otherwise."""
    args = parser().parse_args(argv)
    clients, cases = chosen_clients(args), chosen_cases(args)
    if args.list:
        print("clients:", *(client.name for client in clients), sep="\n  ")
        print("cases:", *(f"{case.group}: {case.title}" for case in cases), sep="\n  ")
        return 0
    if args.quick:
        args.rounds = 1
    before = args.out / "results.json"
    earlier = json.loads(before.read_text()) if args.merge and before.exists() else None
    run: dict[str, Any] = {"about": _about(), "results": []}
    bench = Bench(_settings(args))
    try:
        print(announce(bench, cases, clients, args.rounds), flush=True)
        for case in cases:
            result = run_case(bench, case, clients, args.rounds)
            if result["rows"] or result["failed"]:
                run["results"].append(result)
                print(report.text(result), flush=True)
                print(flush=True)
                _write(run, earlier, args)
    finally:
        bench.close()
    print(f"written: {args.out}/results.json, results.txt and the plots")
    if args.profile:
        print(f"written: {args.out}/profile.txt (the last measurement of gnsq_lite)")
    if args.update_readme:
        report.update_readme(_write(run, earlier, args), HERE / "README.rst", HERE.parent / "docs" / "images")
    return int(any(name.startswith("gnsq_lite") for result in run["results"] for name in result["failed"]))


def announce(bench: Bench, cases: list[Case], clients: list[Implementation], rounds: int) -> str:
    """Return how much is to be measured, and about how long that takes."""
    pairs = [(client, case, min(rounds, case.rounds)) for case in cases for client in clients if case.takes(client)]
    count = sum(times for _client, _case, times in pairs)
    minutes = sum(bench.expected(client, case) * times for client, case, times in pairs) / 60
    return f"{len(cases)} cases, {count} measurements: about {minutes:.0f} minutes on two cores that do nothing else\n"


def _about() -> dict[str, Any]:
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    return {"when": when, "machine": machine(), "versions": versions()}


def _write(run: dict[str, Any], earlier: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    """Write what is there so far, merged with what an earlier run has left; return that."""
    whole = run if earlier is None else report.merge(earlier, run)
    report.write(whole, args.out)
    return whole


if __name__ == "__main__":
    sys.exit(main())
