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

TESTS = Path(__file__).parent
LEDGER = TESTS / "rules.txt"
#: The ledger itself, where the checkout lies beside it.
ORIGINAL = TESTS.parent.parent / "shared" / "requirements.md"

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


def _sources() -> Iterable[tuple[str, str]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        is_raw = path.parent.name == "contract" and not _CLIENT.search(text)
        if path != Path(__file__) and not is_raw:
            yield path.relative_to(TESTS).as_posix(), text


def test_every_rule_is_named_by_a_test_or_pending() -> None:
    assert faults(ledger(LEDGER.read_text(encoding="utf-8")), marks(_sources()), PENDING) == []


def test_the_list_of_rules_is_that_of_the_ledger() -> None:
    rules = ledger(LEDGER.read_text(encoding="utf-8"))
    assert all(_ID.fullmatch(rule) for rule in rules)
    assert len(rules) > 80
    if ORIGINAL.is_file():
        assert rules == re.findall(r"^- ([A-Z]+-\d+) ", ORIGINAL.read_text(encoding="utf-8"), re.M)


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
