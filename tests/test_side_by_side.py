"""The runner of the suite: no file is left out or run twice, and one failure fails all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import side_by_side


@given(
    st.dictionaries(st.integers(0, 99).map(lambda n: Path(f"test_{n}.py")), st.integers(0, 10**5)), st.integers(1, 9)
)
def test_each_file_is_in_one_bundle_and_the_bundles_are_even(sizes: dict[Path, int], count: int) -> None:
    dealt = side_by_side.bundles(sizes, count)
    assert sorted(path for bundle in dealt for path in bundle) == sorted(sizes)
    totals = [sum(sizes[path] for path in bundle) for bundle in dealt]
    assert totals == sorted(totals, reverse=True)
    assert len(dealt) <= count
    if totals and len(sizes) >= count:
        assert totals[0] - totals[-1] <= max(sizes.values())


def test_files_are_found_once_in_files_and_directories() -> None:
    here = Path(__file__)
    found = side_by_side.files([str(here), str(here.parent / "fuzz"), str(here)])
    assert found == [here, here.parent / "fuzz" / "test_corpus.py"]


def test_a_directory_whose_conftest_leaves_files_out_is_given_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(side_by_side.ROOT)
    found = side_by_side.files(["tests"])
    assert found.count(Path("tests/spark")) == 1
    assert not any(Path("tests/spark") in path.parents for path in found)
    assert all(side_by_side.size(path) > 0 for path in found)


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
    programs = [
        f"print('{number} passed in 1.0s'); raise SystemExit({code})" for number, code in ((1, 0), (2, 5), (3, 1))
    ]
    commands = [[sys.executable, "-c", program] for program in programs]
    assert side_by_side.run(commands, 2) == 1
    shown = capfd.readouterr().out
    assert all(f"{number} passed in 1.0s" in shown for number in (1, 2, 3))
    assert shown.splitlines()[-1] == "6 passed, 0 failed, 0 skipped"
    assert side_by_side.run(commands[:2], 2) == 0


def test_a_patched_run_is_patched_from_its_first_import() -> None:
    command = side_by_side.command([Path("tests/test_a.py")], True, ["-k", "one"])
    assert command[1:5] == ["-m", "gevent.monkey", "--module", "pytest"]
    assert command[-3:] == ["-k", "one", "tests/test_a.py"]
