"""The runner of the suite leaves no file out."""

from __future__ import annotations

from pathlib import Path

from tests import side_by_side


def test_the_noted_files_are_there() -> None:
    assert [path for _, path in side_by_side.read_noted() if not (side_by_side.ROOT / path).exists()] == []


def test_the_groups_leave_nothing_out() -> None:
    """What default leaves out is in full: each test is run plain and monkey-patched, once each."""
    runs = side_by_side.RUNS
    assert set(side_by_side.GROUPS["default"]) | set(side_by_side.GROUPS["full"]) == {*runs, *side_by_side.CHECKS}
    patched = {path for name in ("monkey", "rest-monkey") for path in side_by_side.files(runs[name].paths)}
    here = {path for path in side_by_side.files(["tests"]) if path.parent != Path("tests")}
    assert here - patched - set(side_by_side.files(["tests/foreign", "tests/ledger"])) == set()
