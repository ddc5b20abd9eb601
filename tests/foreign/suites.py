"""How each suite is run, and what its tests came to: ``python -m tests.foreign.suites SUITE SERVER RESULT`` runs one.

Nothing of a suite is changed.  It finds ``nsqd`` and ``nsqlookupd`` on PATH, the real ones or the broker under their
names, and has the usual ports to itself where the system lets a process have a network of its own.
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
    """One suite: *variable* names its checkout; *run* is given that and an empty directory."""

    name: str
    variable: str
    programs: tuple[str, ...]
    run: Callable[[Path, Path], Outcomes]

    def source(self) -> Path | None:
        """Return the checkout; None where there is none."""
        given = os.environ.get(self.variable)
        return Path(given) if given else None

    def missing(self) -> str:
        """Return what is missing to run it, or ""."""
        source = self.source()
        if source is None or not source.is_dir():
            return f"{self.variable} names no checkout"
        absent = [program for program in self.programs if shutil.which(program) is None]
        if self.name == "nsqjs" and not (source / "node_modules/.bin/mocha").exists():
            absent.append("mocha (npm install)")
        return f"not found: {', '.join(absent)}" if absent else ""


def put_on_path(server: str, directory: Path) -> None:
    """Make ``nsqd`` and ``nsqlookupd`` be *server* for the programs started from here."""
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
            return _go("go", "test", "-count=1", "-json", "-timeout=300s", ".", at=source)


def _go(*argv: str, at: Path) -> Outcomes:
    done = subprocess.run(argv, cwd=at, stdout=subprocess.PIPE, timeout=LIMIT, check=False)
    return go_outcomes(done.stdout)


def go_outcomes(log: bytes) -> Outcomes:
    """Return the outcomes in what ``go test -json`` wrote; a test without one did not end."""
    found: Outcomes = {}
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if "Test" in event and event["Action"] in ("run", "pass", "fail", "skip"):
            found[event["Test"]] = "unfinished" if event["Action"] == "run" else event["Action"]
    return found


#: They look into the memory of nsqd, if only for an id, or need a setting that it has no flag for.
_IN_MEMORY = (
    "BasicV2|MultipleConsumerV2|ClientTimeout|ClientHeartbeat|Pausing|DPUB|Sampling|ClientMsgTimeout|ReqTimeoutRange"
    "|IOLoopReturns.*|Touch|MaxRdyCount|OutputBuffering|Snappy"
)


def protocol(source: Path, work: Path) -> Outcomes:
    """Run nsqd's own tests of its protocol against a program: ours stands in for the package they are part of."""
    beside = source / "gnsq_lite_foreign"
    overlay = {
        str(beside / "protocol_v2_test.go"): str(source / "nsqd/protocol_v2_test.go"),
        str(beside / "stub.go"): str(HERE / "protocol_stub.go"),
    }
    plan, tests = work / "overlay.json", work / "protocol.test"
    plan.write_text(json.dumps({"Replace": overlay}), encoding="utf-8")
    make = ("go", "test", "-c", "-vet=off", f"-overlay={plan}", f"-o={tests}", "./gnsq_lite_foreign")
    subprocess.run(make, cwd=source, check=True, timeout=LIMIT)
    run = (str(tests), "-test.v=test2json", "-test.timeout=300s", f"-test.skip=^Test({_IN_MEMORY})$")
    return _go("go", "tool", "test2json", *run, at=source / "nsqd")  # where its certificates are


def python_suite(source: Path, work: Path) -> Outcomes:
    """Run a suite of pytest's, with GNSQ_FOREIGN_PYTHON or this Python."""
    python = os.environ.get("GNSQ_FOREIGN_PYTHON") or sys.executable
    report = work / "report.xml"
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={source}", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*argv, str(source / "tests")], cwd=work, env=environment, timeout=LIMIT, check=False)
    return junit_outcomes(report.read_bytes())


def junit_outcomes(report: bytes) -> Outcomes:
    """Return the outcomes in a report of pytest's."""
    found: Outcomes = {}
    for case in xml.etree.ElementTree.fromstring(report).iter("testcase"):
        parts = {part.tag for part in case}
        outcome = "fail" if parts & {"failure", "error"} else "skip" if "skipped" in parts else "pass"
        found[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return found


def nsqjs(source: Path, work: Path) -> Outcomes:
    """Run nsqjs' tests; they start the servers, and mocha would give a Python program too little time for that."""
    report = work / "report.json"
    how = ("--exit", "--timeout=30000", "--reporter=json", f"--reporter-option=output={report}")
    argv = ("node_modules/.bin/mocha", *how)
    subprocess.run(argv, cwd=source, timeout=LIMIT, check=False)
    return mocha_outcomes(report.read_bytes())


def mocha_outcomes(report: bytes) -> Outcomes:
    """Return the outcomes in mocha's JSON report."""
    loaded = json.loads(report)
    kinds = {"passes": "pass", "failures": "fail", "pending": "skip"}
    return {test["fullTitle"]: kind for part, kind in kinds.items() for test in loaded[part]}


SUITES = {
    suite.name: suite
    for suite in (
        Suite("go-nsq", "GNSQ_FOREIGN_GONSQ", ("go",), gonsq),
        Suite("pynsq", "GNSQ_FOREIGN_PYNSQ", (), python_suite),
        Suite("gnsq", "GNSQ_FOREIGN_GNSQ", (), python_suite),
        Suite("nsqjs", "GNSQ_FOREIGN_NSQJS", ("node",), nsqjs),
        Suite("nsqd", "GNSQ_FOREIGN_NSQD", ("go",), protocol),
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
