"""The runner of the suite leaves no file out."""

from __future__ import annotations

import pytest

from tests import side_by_side


def test_the_noted_files_are_there() -> None:
    assert [path for _, path in side_by_side.read_noted() if not (side_by_side.ROOT / path).exists()] == []


def test_the_groups_leave_nothing_out() -> None:
    """default and full run each test plain; night runs each test monkey-patched."""
    runs, groups = side_by_side.RUNS, side_by_side.GROUPS
    assert {run for names in groups.values() for run in names} == {*runs, *side_by_side.CHECKS}
    assert ("plain" in groups["default"], "slow" in groups["full"], "all-monkey" in groups["night"]) == (True,) * 3
    marks = {"plain": "not slow", "slow": "slow", "all-monkey": ""}
    assert {name: (runs[name].marks, runs[name].paths) for name in marks} == {
        name: (mark, ("tests",)) for name, mark in marks.items()
    }


def test_compiled_tests_are_kept_wherever_the_suite_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = side_by_side.environment(side_by_side.Job("plain", (), env={"GNSQ_LITE_IMPL": "c"}))
    assert (found["GNSQ_LITE_IMPL"], "PYTHONDONTWRITEBYTECODE" in found) == ("c", False)
