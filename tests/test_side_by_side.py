"""The runner of the suite: no file is left out or run twice, and one failure fails all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import side_by_side


def a_job(program: str, run: str = "plain") -> side_by_side.Job:
    """Return a job that runs *program*, in place of pytest."""
    return side_by_side.Job(run, (sys.executable, "-c", program), (Path("test_a.py"),))


def test_the_noted_files_are_there() -> None:
    assert [path for _, path in side_by_side.read_noted() if not (side_by_side.ROOT / path).exists()] == []


def test_one_failure_fails_all_and_every_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [
        a_job(f"print('{number} passed in 1.0s'); raise SystemExit({code})", run)
        for number, code, run in ((1, 0, "plain"), (2, 5, "pure"), (3, 1, "plain"))
    ]
    assert side_by_side.Runner(jobs, 2).run() == 1
    shown = capfd.readouterr().out
    assert all(f"{number} passed in 1.0s" in shown for number in (1, 2, 3))
    assert shown.splitlines()[-2:] == [
        "4 passed, 0 failed, 0 skipped in plain",
        "2 passed, 0 failed, 0 skipped in pure",
    ]
    assert side_by_side.Runner(jobs[:2], 2).run() == 0


def test_a_check_that_finds_no_tests_has_failed(capfd: pytest.CaptureFixture[str]) -> None:
    for code, said in ((0, "lint: passed"), (5, "lint: FAILED")):
        check = side_by_side.Job("lint", (sys.executable, "-c", f"raise SystemExit({code})"))
        assert side_by_side.Runner([check], 1).run() == (code != 0)
        assert capfd.readouterr().out.splitlines()[-1] == said


def test_the_groups_leave_nothing_out() -> None:
    """What default leaves out is in full: each test is run plain and monkey-patched, once each."""
    runs = side_by_side.RUNS
    assert set(side_by_side.GROUPS["default"]) | set(side_by_side.GROUPS["full"]) == {*runs, *side_by_side.CHECKS}
    patched = {path for name in ("monkey", "rest-monkey") for path in side_by_side.files(runs[name].paths)}
    here = {path for path in side_by_side.files(["tests"]) if path.parent != Path("tests")}
    assert here - patched - set(side_by_side.files(["tests/foreign", "tests/ledger"])) == set()
