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
