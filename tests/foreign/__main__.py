"""``python -m tests.foreign [SUITE ...]``: run the suites of other clients against nsqd and against the broker.

Each test must have the same outcome on both.  If outcomes differ, the suite is run again on both, at most twice,
because some tests race with the server.  A test differs if no outcome on one server occurred on the other.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.foreign.suites import LIMIT, SERVERS, SUITES, Outcomes

ROUNDS = 3
ROOT = Path(__file__).parents[2]
#: Runs a command with a network and processes of its own.
_ALONE = ("unshare", "-rnpf", "--kill-child", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")

Seen = dict[str, dict[str, set[str]]]


def differences(seen: Seen) -> dict[str, dict[str, set[str]]]:
    """Return the tests without a common outcome, with the outcomes on each server."""
    tests = set().union(*seen.values())
    ends = {test: {server: seen[server].get(test, {"absent"}) for server in SERVERS} for test in sorted(tests)}
    return {test: both for test, both in ends.items() if not both["nsqd"] & both["broker"]}


def alone() -> tuple[str, ...]:
    """Return the command that runs a process in a separate network namespace, or () if that is not possible."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return ()
    return _ALONE if subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode == 0 else ()


def run(name: str, server: str, log: Path) -> Outcomes:
    """Run one suite against one server in a new process group, and kill the remaining processes."""
    result = log.with_suffix(".json")
    argv = [*alone(), sys.executable, "-m", "tests.foreign.suites", name, server, str(result)]
    with log.open("ab") as output:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(LIMIT + 120)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    if not result.exists():
        raise SystemExit(f"{name} did not run against {server}:\n{log.read_text(errors='replace')[-3000:]}")
    outcomes: Outcomes = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return outcomes


def compare(name: str, logs: Path) -> bool:
    """Run a suite until both servers agree, print the counts, and return whether they agree."""
    seen: Seen = {server: defaultdict(set) for server in SERVERS}
    for _ in range(ROUNDS):
        counts = []
        for server in SERVERS:
            outcomes = run(name, server, logs / f"{name}-{server}.log")
            for test, outcome in outcomes.items():
                seen[server][test].add(outcome)
            passed = sum(outcome == "pass" for outcome in outcomes.values())
            counts.append(f"{passed} of {len(outcomes)} pass on {server}")
        found = differences(seen)
        print(f"{name}: {', '.join(counts)}; {len(found)} differ", flush=True)
        if not found:
            return bool(seen["nsqd"])
    for test, both in found.items():
        print(f"  {test}: " + ", ".join(f"{server} {'/'.join(sorted(ends))}" for server, ends in both.items()))
    print(f"  logs: {logs}")
    return False


def main(wanted: list[str]) -> int:
    """Return the exit code: 0 without differences, 2 if no suite could be run."""
    names = wanted or list(SUITES)
    missing = {name: SUITES[name].missing() for name in names}
    for name, why in missing.items():
        if why:
            print(f"{name}: not run, {why}")
    ready = [name for name in names if not missing[name]]
    if not ready or (wanted and len(ready) < len(names)):
        return 2
    logs = Path(tempfile.mkdtemp(prefix="gnsq-foreign-logs-"))
    agreed = [compare(name, logs) for name in ready]
    if all(agreed):
        shutil.rmtree(logs)
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
