"""Run the test suite of another client: ``python -m tests.foreign.suites SUITE SERVER RESULT``.

The suite is not changed.  It starts ``nsqd`` and ``nsqlookupd`` from PATH: the real programs, or the broker under their
names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import nsqd_program, nsqlookupd_program

HERE = Path(__file__).parent
#: Seconds a suite may take.
LIMIT = 900.0
SERVERS = ("nsqd", "broker")

Outcomes = dict[str, str]


@dataclass(frozen=True)
class Suite:
    """One suite: the environment variable *variable* has its checkout; *run* gets that path and an empty directory."""

    name: str
    variable: str
    programs: tuple[str, ...]
    run: Callable[[Path, Path], Outcomes]

    def source(self) -> Path | None:
        """Return the checkout, or None."""
        given = os.environ.get(self.variable)
        return Path(given) if given else None

    def missing(self) -> str:
        """Return why the suite cannot be run, or ""."""
        source = self.source()
        if source is None or not source.is_dir():
            return f"{self.variable} names no checkout"
        absent = [program for program in self.programs if shutil.which(program) is None]
        return f"not found: {', '.join(absent)}" if absent else ""


def put_on_path(server: str, directory: Path) -> None:
    """Put *server* on PATH under the names ``nsqd`` and ``nsqlookupd``."""
    directory.mkdir()
    for name, program in (("nsqd", nsqd_program()), ("nsqlookupd", nsqlookupd_program())):
        if server == "broker":
            target = directory / name
            target.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "server.py"} {name} "$@"\n', encoding="ascii")
            target.chmod(0o755)
        elif program is None:
            raise SystemExit(f"no {name}: on PATH, or named by GNSQ_{name.upper()}")
        else:
            (directory / name).symlink_to(Path(program).resolve())
    os.environ["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"


# -- the suites -----------------------------------------------------------------------------------------------------


@contextmanager
def _started(*argv: str) -> Iterator[None]:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(url: str) -> None:
    limit = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()
            return
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


def gonsq(source: Path, work: Path) -> Outcomes:
    """Run go-nsq's tests beside the servers that its test.sh starts."""
    tls = [f"--tls-cert={source}/test/server.pem", f"--tls-key={source}/test/server.key"]
    with _started("nsqlookupd"):
        _wait_for("http://127.0.0.1:4161/ping")
        more = (f"--tls-root-ca-file={source}/test/ca.pem", "--lookupd-tcp-address=127.0.0.1:4160")
        with _started("nsqd", f"--data-path={work}", *tls, *more):
            _wait_for("http://127.0.0.1:4151/ping")
            argv = ("go", "test", "-count=1", "-json", "-timeout=300s", ".")
            done = subprocess.run(argv, cwd=source, stdout=subprocess.PIPE, timeout=LIMIT, check=False)
            return go_outcomes(done.stdout)


def go_outcomes(log: bytes) -> Outcomes:
    """Parse the output of ``go test -json``; a test without an outcome is "unfinished"."""
    found: Outcomes = {}
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if "Test" in event and event["Action"] in ("run", "pass", "fail", "skip"):
            found[event["Test"]] = "unfinished" if event["Action"] == "run" else event["Action"]
    return found


def python_suite(source: Path, work: Path) -> Outcomes:
    """Run a suite with pytest, with the Python of GNSQ_FOREIGN_PYTHON or this Python."""
    python = os.environ.get("GNSQ_FOREIGN_PYTHON") or sys.executable
    report = work / "report.xml"
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={source}", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*argv, str(source / "tests")], cwd=work, env=environment, timeout=LIMIT, check=False)
    return junit_outcomes(report.read_bytes())


def junit_outcomes(report: bytes) -> Outcomes:
    """Parse pytest's JUnit report."""
    found: Outcomes = {}
    for case in xml.etree.ElementTree.fromstring(report).iter("testcase"):
        parts = {part.tag for part in case}
        outcome = "fail" if parts & {"failure", "error"} else "skip" if "skipped" in parts else "pass"
        found[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return found


SUITES = {
    suite.name: suite
    for suite in (
        Suite("go-nsq", "GNSQ_FOREIGN_GONSQ", ("go",), gonsq),
        Suite("pynsq", "GNSQ_FOREIGN_PYNSQ", (), python_suite),
        Suite("gnsq", "GNSQ_FOREIGN_GNSQ", (), python_suite),
    )
}


def main(name: str, server: str, result: str) -> None:
    """Run one suite against one server, and write its outcomes as JSON."""
    suite = SUITES[name]
    source = suite.source()
    if source is None:
        raise SystemExit(suite.missing())
    with tempfile.TemporaryDirectory(prefix="gnsq-foreign-") as given:
        work = Path(given)
        put_on_path(server, work / "bin")
        outcomes = suite.run(source.resolve(), work)
    Path(result).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
