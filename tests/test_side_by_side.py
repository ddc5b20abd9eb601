"""The runner of the suite: no file is left out or run twice, and one failure fails all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import side_by_side


def a_job(program: str, run: str = "plain") -> side_by_side.Job:
    """Return a job that runs *program*, in place of pytest."""
    return side_by_side.Job(run, (sys.executable, "-c", program), (Path("test_a.py"),))


@given(st.dictionaries(st.integers(0, 99).map(lambda n: Path(f"test_{n}.py")), st.floats(0, 100)), st.integers(1, 9))
def test_each_file_is_in_one_bundle_the_longest_first_and_the_last_ones_are_short(
    weights: dict[Path, float], processes: int
) -> None:
    dealt = side_by_side.bundles(weights, processes)
    assert sorted(path for bundle in dealt for path in bundle) == sorted(weights)
    longest = [max(weights[path] for path in bundle) for bundle in dealt]
    assert longest == sorted(longest, reverse=True)
    left = sum(weights.values())
    for bundle in dealt:  # what one process has to do alone in the end is little, where its files allow that
        total = sum(weights[path] for path in bundle)
        assert len(bundle) == 1 or total <= max(left / processes * side_by_side.PART, side_by_side.LEAST) + 1e-6
        left -= total


def test_what_was_noted_decides_and_the_size_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "SECONDS", tmp_path / "seconds.txt")
    assert side_by_side.read_noted() == {}
    path = Path(__file__)
    side_by_side.record({side_by_side.Job("plain", (), (path,)): 20.0, side_by_side.Job("pure", (), (path,)): 0.5})
    noted = side_by_side.read_noted()
    assert noted == {("plain", path.as_posix()): 20.0}
    assert side_by_side.seconds("plain", path, noted) == 20.0
    assert 0 < side_by_side.seconds("pure", path, noted) <= side_by_side.NOTED
    side_by_side.record({side_by_side.Job("pure", (), (path,)): 3.0})
    assert len(side_by_side.read_noted()) == 2
    side_by_side.record({side_by_side.Job("plain", (), (path,)): 0.5})
    assert side_by_side.read_noted() == {("pure", path.as_posix()): 3.0}


def test_the_noted_files_are_there() -> None:
    assert [path for _, path in side_by_side.read_noted() if not (side_by_side.ROOT / path).exists()] == []


def test_files_are_found_once_in_files_and_directories() -> None:
    here = Path(__file__)
    found = side_by_side.files([str(here), str(here.parent / "fuzz"), str(here)])
    assert found == [here, here.parent / "fuzz" / "test_corpus.py"]


def test_a_directory_whose_conftest_leaves_files_out_is_given_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(side_by_side.ROOT)
    found = side_by_side.files(["tests"])
    assert found.count(Path("tests/spark")) == 1
    assert not any(Path("tests/spark") in path.parents for path in found)
    assert all(side_by_side.seconds("plain", path, {}) > 0 for path in found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("12 passed in 0.30s", {"passed": 12}),
        (
            "=== 1 failed, 2 passed, 3 skipped, 1 error in 75.01s (0:01:15) ===",
            {"failed": 1, "passed": 2, "skipped": 3, "error": 1},
        ),
        ("no tests ran in 0.01s", {}),
    ],
)
def test_the_closing_line_is_counted(line: str, said: dict[str, int]) -> None:
    assert side_by_side.counts(f"..F\n5 passed in the text\n{line}\n") == said


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


def test_a_run_has_its_environment(capfd: pytest.CaptureFixture[str]) -> None:
    for name, run in side_by_side.RUNS.items():
        (job,) = side_by_side.jobs([name], [__file__], [], 1)
        assert job.env == {**run.env, "GNSQ_TESTS_PATCHED": "1" if "monkey" in name else "0"}
        assert ("gevent.monkey" in job.command) is ("monkey" in name)
    said = "import os; print(os.environ['GNSQ_LITE_IMPL'])"
    job = side_by_side.Job("pure", (sys.executable, "-c", said), env=side_by_side.RUNS["pure"].env)
    side_by_side.Runner([job], 1).run()
    assert "python" in capfd.readouterr().out


def test_the_groups_leave_nothing_out() -> None:
    """What default leaves out is in full: each test is run plain and monkey-patched, once each."""
    runs = side_by_side.RUNS
    assert set(side_by_side.GROUPS["default"]) | set(side_by_side.GROUPS["full"]) == {*runs, *side_by_side.CHECKS}
    patched = {path for name in ("monkey", "rest-monkey") for path in side_by_side.files(runs[name].paths)}
    here = {path for path in side_by_side.files(["tests"]) if path.parent != Path("tests")}
    assert here - patched - set(side_by_side.files(["tests/foreign", "tests/ledger"])) == set()


def test_a_patched_run_is_patched_from_its_first_import() -> None:
    command = side_by_side.command([Path("tests/test_a.py")], side_by_side.RUNS["monkey"], ["-k", "one"])
    assert command[1:5] == ("-m", "gevent.monkey", "--module", "pytest")
    assert command[-3:] == ("-k", "one", "tests/test_a.py")
