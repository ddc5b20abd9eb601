"""``python -m tests.ledger --seeds 1-200 --messages 500``: prints a line per seed; exit status 1 when one is bad."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.ledger import clock
from tests.ledger.book import Audit, table
from tests.ledger.run import LIES, run


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds, one after the other, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger", description=__doc__)
    parser.add_argument("--seeds", default="1-10", help="A-B")
    parser.add_argument("--messages", type=int, default=300, help="of each seed")
    parser.add_argument("--seconds", type=float, default=2.0, help="over which a seed's messages are published")
    parser.add_argument("--server", choices=["embedded", "nsqd"], default="embedded")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no further seed is begun")
    parser.add_argument("--pause", type=float, help="seconds of each SIGSTOP, 70 for one")
    parser.add_argument("--lie", choices=LIES, default="", help="let the clients lie, to see the run fail")
    parser.add_argument(
        "--threads", type=int, default=0, help="publishing threads of each Writer; 0: publishes of the loop"
    )
    chosen = parser.parse_args(arguments)
    first, _, last = chosen.seeds.partition("-")
    audits: list[Audit] = []
    began = time.monotonic()
    for line in table(()):
        print(line)
    for seed in range(int(first), int(last or first) + 1):
        if time.monotonic() - began > chosen.limit:
            break
        with tempfile.TemporaryDirectory() as folder:
            options = chosen.server, chosen.seconds, chosen.pause, chosen.lie, chosen.threads
            result = run(seed, chosen.messages, Path(folder), *options)
        audits.append(result)
        print(list(table([result]))[1], flush=True)
        for what in result.unexplained:
            print(f"      {what}", flush=True)
    print(summary(audits))
    return 0 if all(audit.good for audit in audits) else 1


def summary(audits: list[Audit]) -> str:
    """Return the sums of *audits* in words."""
    reasons: Counter[str] = Counter()
    for audit in audits:
        reasons.update(audit.redelivered)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return (
        f"{len(audits)} seeds, {sum(a.messages for a in audits)} messages, {sum(a.faults for a in audits)} faults:"
        f" lost {sum(len(a.lost) for a in audits)}, left {sum(a.left for a in audits)},"
        f" lost by nsqd itself {sum(len(a.lost_by_nsqd) for a in audits)}, of them sent to a client"
        f" {sum(a.lost_in_flight for a in audits)},"
        f" second copies {sum(a.copies for a in audits)}, sent again: {told or 'none'},"
        f" unexplained {sum(len(a.unexplained) for a in audits)}"
    )


def with_a_clock_that_jumps() -> int:
    """Run this command again in a process whose wall clock can jump."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            variables = clock.environment(Path(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no C compiler, so the clock does not jump: {error}", file=sys.stderr)
            return main()
        command = [sys.executable, *sys.orig_argv[1:]]
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    # Log records are written, to nowhere: the locks of logging are among what may stop a process.
    logging.basicConfig(filename=os.devnull, level=logging.DEBUG)
    sys.exit(main() if clock.jumps() else with_a_clock_that_jumps())
