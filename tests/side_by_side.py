"""Runs test files side by side: most tests wait, so two processes for each core take a fraction of the time of one.

::

    python -m tests.side_by_side [--patched] [--processes N] [PATH ...] [-- arguments of pytest]

The files are dealt out in bundles, the long ones first; each bundle is a pytest process of its own, monkey-patched from
its first import where asked for (pytest-xdist's workers cannot be), and printed whole when it ends.  Exits with 1 where
one failed; its last line counts all.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
#: Directories whose conftest leaves files out; pytest asks it for files that it finds, not for those it is given.
WHOLE = (Path("tests/spark"),)
#: Bundles for each process: as one ends the next begins, so none is left with all the long ones.
BUNDLES = 6
#: Seconds between two looks at the processes.
LOOK = 0.1
#: pytest's exit code where it found no test to run, as when all of a bundle are deselected.
NO_TESTS = 5


def files(paths: Iterable[str]) -> list[Path]:
    """Return the test files of *paths*, files or directories, each once; a directory of WHOLE in place of its files."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        for each in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            found[next((whole for whole in WHOLE if whole in each.parents), each)] = None
    return list(found)


def size(path: Path) -> int:
    """Return the bytes of a file, or of a directory's test files."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("test_*.py")))


def bundles(sizes: dict[Path, int], count: int) -> list[list[Path]]:
    """Deal files of so many bytes out to *count* bundles of about the same size; the largest bundle comes first."""
    dealt: list[tuple[int, list[Path]]] = [(0, []) for _ in range(max(1, min(count, len(sizes))))]
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        index = min(range(len(dealt)), key=lambda number: dealt[number][0])
        total, bundle = dealt[index]
        dealt[index] = total + sizes[path], [*bundle, path]
    return [sorted(bundle) for _, bundle in sorted(dealt, key=lambda each: -each[0]) if bundle]


def counts(output: str) -> Counter[str]:
    """Return what pytest's closing line counts: {"passed": 3, "failed": 1}."""
    closing = re.findall(r"^=*\s*(\d+ (?:passed|failed|error|skipped|deselected).* in [\d.]+s.*)$", output, re.M)
    words = re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing[-1] if closing else "")
    return Counter({word.removesuffix("s"): int(number) for number, word in words})


def command(bundle: Sequence[Path], patched: bool, arguments: Sequence[str]) -> list[str]:
    """Return what runs a bundle."""
    module = ["gevent.monkey", "--module", "pytest"] if patched else ["pytest"]
    return [sys.executable, "-m", *module, "-p", "no:cacheprovider", *arguments, *map(str, bundle)]


def run(commands: Sequence[Sequence[str]], processes: int) -> int:
    """Run *commands*, so many at once; print each when it ends; return 1 where one failed, else 0."""
    waiting, running = list(commands), dict[subprocess.Popen[bytes], IO[bytes]]()
    total, failed, begun = Counter[str](), 0, time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when its process ends
                running[subprocess.Popen(waiting.pop(0), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)] = output
            time.sleep(LOOK)
            for process in [each for each in running if each.poll() is not None]:
                with running.pop(process) as output:
                    output.seek(0)
                    text = output.read().decode("utf-8", "replace")
                total += counts(text)
                failed |= process.returncode not in (0, NO_TESTS)
                print(
                    text, f"-- {time.monotonic() - begun:.0f} s, {len(waiting) + len(running)} bundles left", flush=True
                )
    finally:
        for process in running:
            process.kill()
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    return int(failed)


def main(argv: Sequence[str]) -> int:
    """Run what *argv* names; return the exit code."""
    own, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(prog="tests.side_by_side", description=__doc__)
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--processes", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("paths", nargs="*", default=["tests"])
    options = parser.parse_args(own)
    found = files(options.paths or ["tests"])
    dealt = bundles({path: size(path) for path in found}, options.processes * BUNDLES)
    os.environ["GNSQ_TESTS_PATCHED"] = str(int(options.patched))  # tests/test_patched.py sees that it is so
    return run([command(bundle, options.patched, rest) for bundle in dealt], options.processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
