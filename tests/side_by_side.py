"""Runs the suite in several processes: five for each core, because most tests wait and use little CPU time.

::

    python -m tests.side_by_side [--processes N] [--record] [RUN ...] [PATH ...] [-- arguments of pytest]

A RUN is one of RUNS or GROUPS.  If PATHs are given, each run has the tests of these paths only.  All runs share one set
of processes.  The files of a run are divided into bundles, and each bundle is one pytest process.  The slowest bundle
starts first; a free process takes the next.  A run may be monkey-patched from the first import, which pytest-xdist's
workers cannot be.  The output of a bundle is printed when it ends.  The last lines have the counts of each run and the
CPU time of all.  Exits with 1 if a bundle failed.

``--record`` runs each file in a process, and writes the duration of each file to ``tests/seconds.txt``.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
SECONDS = ROOT / "tests/seconds.txt"
#: Directories whose conftest excludes files: pytest calls its hook for files that it finds, not for files by name.
WHOLE = (Path("tests/recording"), Path("tests/spark"))
#: Duration of a bundle: this part of the remaining seconds of a process, but at least LEAST.  So the last are short.
#: Each bundle costs 1 s of CPU time for the start of pytest.
PART = 2 / 3
LEAST = 150.0
#: Bytes of a test file per second of its duration, if tests/seconds.txt does not have the file.
BYTES_PER_SECOND = 8000.0
#: Seconds; tests/seconds.txt does not have files that take less.
NOTED = 4.0
#: Seconds between two checks of the processes.
LOOK = 0.1
#: pytest's exit code if it ran no test, for example because all tests of a bundle are deselected.
NO_TESTS = 5


@dataclass(frozen=True)
class Run:
    """Marks, files and environment of a run."""

    marks: str
    paths: tuple[str, ...] = ("tests",)
    patched: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: {"GNSQ_LITE_IMPL": "c"})


@dataclass(frozen=True, eq=False)
class Job:
    """A process of *run*, with its estimated duration in *seconds*."""

    run: str
    command: tuple[str, ...]
    files: tuple[Path, ...] = ()
    seconds: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)


#: System tests of servers, pages, HTTP clients and databases: only 'night' runs them monkey-patched.
SERVERS = (
    *("test_broker_", "test_hostile_clients", "test_http_endpoints", "test_http_hostile", "test_http_youzan"),
    *("test_inbox", "test_live_", "test_outbox", "test_status_"),
)
#: Tests of Readers and Writers whose result can depend on monkey-patching.
PATCHABLE = (
    *("tests/test_patched.py", "tests/unit/net", "tests/unit/consume", "tests/unit/publish"),
    *("tests/unit/test_threads.py", "tests/unit/test_runner.py", "tests/unit/test_testing.py"),
    *(f"tests/system/{p.name}" for p in ROOT.glob("tests/system/test_*.py") if not p.name.startswith(SERVERS)),
)
#: Tests of the modules that the C part replaces: the wire, Readers and publishing threads.
REPLACED = (
    *("tests/unit/wire", "tests/unit/net", "tests/unit/consume", "tests/unit/publish", "tests/unit/test_speed.py"),
    *("tests/unit/test_runner.py", "tests/unit/test_workers.py", "tests/unit/test_packing.py"),
    "tests/system/test_reader.py",
)
LONG = {"GNSQ_LITE_IMPL": "c", "GNSQ_TESTS_LONG": "1"}
CHECKS = {
    "lint": ((sys.executable, "-m", "ruff", "check", "."), (sys.executable, "-m", "ruff", "format", "--check", ".")),
}
RUNS = {
    "plain": Run("not slow"),
    "pure": Run("not slow", REPLACED, env={"GNSQ_LITE_IMPL": "python"}),
    # A test that only watches programs proves the same in a patched process: only 'night' runs it there.
    "monkey": Run("not slow and not program", PATCHABLE, patched=True),
    "slow": Run("slow", env=LONG),
    "slow-monkey": Run("slow and not program", PATCHABLE, patched=True, env=LONG),
    "all-monkey": Run("", patched=True, env=LONG),
    "rest-pure": Run("not slow and not program", ("tests/system",), env={"GNSQ_LITE_IMPL": "python"}),
}
GROUPS = {
    "default": ("lint", "plain", "pure", "monkey"),
    "full": ("slow", "slow-monkey"),
    "night": ("all-monkey", "rest-pure"),
}


def files(paths: Iterable[str]) -> list[Path]:
    """Return the test files of *paths*, each once.  A directory in WHOLE replaces its files."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        for each in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            found[next((whole for whole in WHOLE if whole in each.parents), each)] = None
    return list(found)


def seconds(run: str, path: Path, noted: Mapping[tuple[str, str], float]) -> float:
    """Estimate the seconds of *path* in *run*: from tests/seconds.txt, else from its size."""
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("test_*.py")))
    return noted.get((run, path.as_posix()), min(NOTED, size / BYTES_PER_SECOND))


def read_noted() -> dict[tuple[str, str], float]:
    """Read the seconds of each run and file from tests/seconds.txt."""
    lines = SECONDS.read_text(encoding="utf-8").splitlines() if SECONDS.exists() else []
    return {(run, path): float(took) for took, run, path in map(str.split, lines)}


def bundles(weights: Mapping[Path, float], processes: int) -> list[list[Path]]:
    """Divide files into bundles by their seconds: the slowest files first, and each bundle shorter than the last."""
    waiting = sorted(weights, key=lambda path: (-weights[path], path))
    left, dealt = sum(weights.values()), list[list[Path]]()
    while waiting:
        share, bundle, total = max(left / processes * PART, LEAST), list[Path](), 0.0
        while waiting and (not bundle or total + weights[waiting[0]] <= share):
            total += weights[waiting[0]]
            bundle.append(waiting.pop(0))
        left -= total
        dealt.append(sorted(bundle))
    return dealt


def counts(output: str) -> Counter[str]:
    """Return the counts in pytest's closing line: {"passed": 3, "failed": 1}."""
    closing = re.findall(r"^=*\s*(\d+ (?:passed|failed|error|skipped|deselected).* in [\d.]+s.*)$", output, re.M)
    words = re.findall(r"(\d+) (passed|failed|errors?|skipped)", closing[-1] if closing else "")
    return Counter({word.removesuffix("s"): int(number) for number, word in words})


def command(bundle: Sequence[Path], run: Run, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a bundle."""
    module = ["gevent.monkey", "--module", "pytest"] if run.patched else ["pytest"]
    paths = map(str, bundle)
    without = ("-p", "no:cacheprovider", "-p", "no:xdist")
    return (sys.executable, "-m", *module, "-q", *without, "-m", run.marks, *arguments, *paths)


def environment(job: Job) -> dict[str, str]:
    """Return the environment of *job*.

    Without PYTHONDONTWRITEBYTECODE, because each pytest would compile the tests and hypothesis again: 1 s of CPU time.
    """
    return {name: value for name, value in {**os.environ, **job.env}.items() if name != "PYTHONDONTWRITEBYTECODE"}


def jobs(
    names: Sequence[str], paths: Sequence[str], arguments: Sequence[str], processes: int, alone: bool = False
) -> list[Job]:
    """Return the processes of the runs *names*, the slowest first.  *alone*: one process for each file."""
    noted, found, checks = read_noted(), list[Job](), list[Job]()
    for name in names:
        checks += [Job(name, each) for each in CHECKS.get(name, ())]
        if (run := RUNS.get(name)) is None:
            continue
        weights = {path: seconds(name, path, noted) for path in files(paths or run.paths)}
        env = {**run.env, "GNSQ_TESTS_PATCHED": str(int(run.patched))}  # tests/test_patched.py sees that it is so
        for bundle in [[path] for path in weights] if alone else bundles(weights, processes):
            total = sum(weights[path] for path in bundle)
            found.append(Job(name, command(bundle, run, arguments), tuple(bundle), total, env))
    return checks + sorted(found, key=lambda job: -job.seconds)


class Runner:
    """Runs at most *processes* jobs at once, and prints the output of each when it ends."""

    def __init__(self, waiting: Sequence[Job], processes: int) -> None:
        self.waiting, self.processes = list(waiting), processes
        self.running: dict[subprocess.Popen[bytes], tuple[Job, IO[bytes], float]] = {}
        self.total = {job.run: Counter[str]() for job in waiting}
        self.failed = {job.run: False for job in waiting}
        #: Seconds of each job that ended.
        self.took: dict[Job, float] = {}
        self.begun = time.monotonic()

    def run(self) -> int:
        """Run all jobs.  Return 1 if one failed, else 0."""
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.processes:
                    self._start(self.waiting.pop(0))
                time.sleep(LOOK)
                for process in [each for each in self.running if each.poll() is not None]:
                    self._end(process)
        finally:
            for process in self.running:
                process.kill()
        for name, total in self.total.items():
            said = f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped"
            print(f"{said} in {name}" if total else f"{name}: {'FAILED' if self.failed[name] else 'passed'}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"CPU time: {used.ru_utime + used.ru_stime:.0f} s")
        return int(any(self.failed.values()))

    def _start(self, job: Job) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when its process ends
        process = subprocess.Popen(job.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment(job))
        self.running[process] = job, output, time.monotonic()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        job, output, begun = self.running.pop(process)
        now = time.monotonic()
        with output:
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        self.took[job] = now - begun
        self.total[job.run] += counts(text)
        self.failed[job.run] |= process.returncode not in ((0, NO_TESTS) if job.files else (0,))
        what = f"{len(job.files)} files" if job.files else " ".join(job.command[2:])
        left = len(self.waiting) + len(self.running)
        print(text, f"-- {job.run}, {what}, {now - begun:.0f} s: {now - self.begun:.0f} s so far, {left} bundles left")
        sys.stdout.flush()


def record(took: Mapping[Job, float]) -> None:
    """Replace the seconds of these runs in tests/seconds.txt."""
    noted = {key: value for key, value in read_noted().items() if key[0] not in {job.run for job in took}}
    noted |= {(job.run, job.files[0].as_posix()): value for job, value in took.items() if job.files and value >= NOTED}
    rows = sorted((run, -value, path) for (run, path), value in noted.items())
    SECONDS.write_text("".join(f"{-value:6.1f} {run} {path}\n" for run, value, path in rows), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Run what *argv* names; return the exit code."""
    own, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(prog="tests.side_by_side", description=__doc__)
    parser.add_argument("--processes", type=int, default=5 * (os.cpu_count() or 1))
    parser.add_argument("--record", action="store_true")
    parser.add_argument("what", nargs="*", default=["plain"])
    options = parser.parse_args(own)
    known = {**dict.fromkeys([*CHECKS, *RUNS]), **GROUPS}
    names = [name for each in options.what if each in known for name in (known[each] or (each,))]
    paths = [each for each in options.what if each not in known]
    compileall.compile_dir(
        ROOT / "gnsq_lite", quiet=2
    )  # or each program that tests start would do so, and keep nothing
    runner = Runner(jobs(names or ["plain"], paths, rest, options.processes, options.record), options.processes)
    status = runner.run()
    if options.record:
        record(runner.took)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
