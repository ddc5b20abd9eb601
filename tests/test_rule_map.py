"""Every rule of the ledger is proven by a test that names it: ``@pytest.mark.rule("RDY-3")``.

``rules.txt`` lists the ledger's ids.  Contract tests that speak raw bytes mark the rules that rest on what they show;
these marks do not count here, because they do not show that the client keeps it.  ``PENDING`` are rules of parts that
are not built yet; the set can only shrink, because a rule that has a test may not be in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import rules

TESTS = Path(__file__).parent
LEDGER = TESTS / "rules.txt"

PENDING: frozenset[str] = frozenset()

_ID = re.compile(r"[A-Z]+-\d+")
_CLIENT = re.compile(r"^from gnsq_lite(?!\.broker)", re.M)
_MARK = re.compile(r"mark\.rule\(([^)]*)\)")


def ledger(text: str) -> list[str]:
    """Return the ids of ``rules.txt``, in its order."""
    return [line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]


def marks(sources: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return rule id -> the files whose tests carry its mark; *sources* are (file, text)."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in sources:
        for arguments in _MARK.findall(text):
            for rule in re.findall(r"[\"']([^\"']*)[\"']", arguments):
                found[rule].add(name)
    return found


def faults(rules: list[str], marked: dict[str, set[str]], pending: frozenset[str]) -> list[str]:
    """Return what is wrong between the ledger, the marks and the pending set."""
    known = set(rules)
    found = [f"{rule}: listed twice" for rule in sorted(known) if rules.count(rule) > 1]
    found += [f"{rule}: no test names it" for rule in rules if rule not in marked and rule not in pending]
    found += [f"{rule}: has a test, so it is not pending" for rule in sorted(pending & set(marked))]
    found += [f"{rule}: pending, but not in the ledger" for rule in sorted(pending - known)]
    found += [f"{rule}: named by {sorted(marked[rule])}, but not in the ledger" for rule in sorted(set(marked) - known)]
    return found


def _every_test() -> Iterable[tuple[str, str]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        yield path.relative_to(TESTS).as_posix(), path.read_text(encoding="utf-8")


def _sources() -> Iterable[tuple[str, str]]:
    for name, text in _every_test():
        is_raw = name.startswith("contract/") and not _CLIENT.search(text)
        if name != Path(__file__).name and not is_raw:
            yield name, text


def test_every_rule_is_named_by_a_test_or_pending() -> None:
    assert faults(ledger(LEDGER.read_text(encoding="utf-8")), marks(_sources()), PENDING) == []


def test_the_ledger_lists_ids_of_rules() -> None:
    rules = ledger(LEDGER.read_text(encoding="utf-8"))
    assert all(_ID.fullmatch(rule) for rule in rules)
    assert len(rules) > 80


RULES = ["A-1", "A-2"]


@pytest.mark.parametrize(
    ("rules", "marked", "pending"),
    [
        (RULES, {"A-1": {"x"}}, frozenset()),
        (RULES, {"A-1": {"x"}, "A-2": {"x"}}, frozenset({"A-2"})),
        (RULES, {"A-1": {"x"}, "A-2": {"x"}, "A-3": {"x"}}, frozenset()),
        (RULES, {"A-1": {"x"}, "A-2": {"x"}}, frozenset({"A-4"})),
        (["A-1", "A-1"], {"A-1": {"x"}}, frozenset()),
    ],
    ids=["no test", "pending with a test", "unknown rule", "unknown pending", "twice"],
)
def test_a_planted_fault_is_found(rules: list[str], marked: dict[str, set[str]], pending: frozenset[str]) -> None:
    assert len(faults(rules, marked, pending)) == 1


def test_marks_are_found_in_every_spelling() -> None:
    text = '@pytest.mark.rule("A-1")\npytestmark = [pytest.mark.rule("A-2"), mark.rule(\'A-3\', "A-4")]\n'
    assert set(marks([("f", text)])) == {"A-1", "A-2", "A-3", "A-4"}
    assert faults(RULES, {"A-1": {"f"}}, frozenset({"A-2"})) == []


def test_one_step_leads_from_a_rule_to_its_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main(["RDY-4"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("RDY-4 ")
    found = {tuple(line.strip().split(" ", 1)) for line in lines}
    for place, name in found:
        path, _, line = place.partition(":")
        assert re.search(rf"\b{name}\b", (TESTS.parent / path).read_text("utf-8").splitlines()[int(line) - 1])
    names = {name for _, name in found}
    assert {"TestAllocatorMachine", "test_random_histories_keep_every_promise"} <= names
    assert {place.partition(":")[0].removeprefix("tests/") for place, _ in found} == marks(_every_test())["RDY-4"]
    assert rules.main(["RDY", "NO-1"]) == 1
    told = capsys.readouterr()
    assert "RDY-8 " in told.out
    assert told.err == "NO-1: no such rule; they are in tests/rules.txt\n"
    text = 'pytestmark = mark.rule("A-1")\n\n@mark.rule("A-1", "A-2")\n@mark.slow\ndef test_it():\n'
    assert list(rules.tests_of("A-2", text)) == [(5, "test_it")]
    assert list(rules.tests_of("A-1", text)) == [(1, "pytestmark"), (5, "test_it")]
