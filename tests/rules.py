"""``python -m tests.rules RDY-4 ...``: each rule and the tests that name it, as ``file:line test``; RDY for a family.

Exit status 1 where a rule is unknown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
_MARK = re.compile(r"mark\.rule\(([^)]*)\)")
_NAME = re.compile(r"\s*(?:def|class) (\w+)|(\w+) = ")


def tests_of(rule: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each test in *text* that names *rule*; of all in a file: "pytestmark"."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if any(rule in re.findall(r"[\w-]+", arguments) for arguments in _MARK.findall(line)):
            below = enumerate(lines[number:], number + 1)
            yield next((at, name[1] or name[2]) for at, each in below if (name := _NAME.match(each)))


def main(arguments: list[str]) -> int:
    """Print what is asked for and return the exit status."""
    known = {line.split(maxsplit=1)[0]: line for line in (TESTS / "rules.txt").read_text("utf-8").splitlines()}
    status = 0
    for asked in arguments:
        rules = [rule for rule in known if rule == asked or rule.startswith(f"{asked}-")]
        if not rules:
            print(f"{asked}: no such rule; they are in tests/rules.txt", file=sys.stderr)
            status = 1
        for rule in rules:
            print(known[rule])
            for path in sorted(TESTS.rglob("test_*.py")):
                for line, name in tests_of(rule, path.read_text("utf-8")):
                    print(f"  {path.relative_to(TESTS.parent)}:{line} {name}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
