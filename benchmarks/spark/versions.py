"""Compares the Spark cases of this checkout with those of another one.

``python -m benchmarks.spark.versions OTHER CASE...``

Both checkouts must have their C extension built in place.  Each checkout has one process with its own nsqd and session,
and its own code of the cases.  The processes take turns.  The first round is discarded.  Prints the median CPU of each
case in microseconds a row, without nsqd's, and the ratio this / other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CHILD = """
import json, sys, tempfile
from pathlib import Path
from benchmarks.spark.__main__ import chosen, sessions
from tests import servers

session = sessions()
with tempfile.TemporaryDirectory() as name, servers.real_nsqd(Path(name), "nsqd", mem_queue_size=10_000_000) as server:
    cases = chosen(server, Path(name), int(sys.argv[1]), 10, lambda: next(session))
    for line in sys.stdin:
        print("\\n" + json.dumps(cases[line.rstrip("\\n")]()), flush=True)
"""


def started(checkout: Path, rows: int) -> subprocess.Popen[str]:
    """Start the process of a checkout."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(rows)], cwd=checkout, env=env, stdin=pipe, stdout=pipe, text=True
    )


def measured(process: subprocess.Popen[str], case: str) -> float:
    """Run *case* once, and return its CPU in microseconds a row, without nsqd's."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(case + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return float(found["cpu_us"] - found.get("cpu_us_nsqd", 0.0))
    raise SystemExit(f"the process of a checkout ended in the case {case!r}")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("case", nargs="+", help='such as "topic -> noop", "recorder"')
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=500_000)
    given = parser.parse_args()
    processes = [started(checkout.resolve(), given.rows) for checkout in (ROOT, given.other)]
    found: dict[str, list[tuple[float, ...]]] = {case: [] for case in given.case}
    for number in range(given.rounds + 1):
        for case, pairs in found.items():
            turns = processes if number % 2 else processes[::-1]
            used = {process.pid: measured(process, case) for process in turns}
            if number:
                pairs.append(tuple(used[process.pid] for process in processes))
    for case, pairs in found.items():
        this, other = map(median, zip(*pairs, strict=True))
        print(f"{case}: {this:.2f} us a row, {other:.2f} in {given.other}, ratio {this / other:.2f}")
    for process in processes:
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
