"""Makes the conformance table of docs/testing.rst: ``python -m tests.contract.conformance``.

The rows are the behaviours of :mod:`tests.contract.test_conformance`, which runs each of them on every server.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.rst"
BEGIN, END = ".. conformance table: begin\n\n", "\n.. conformance table: end\n"
HEAD = ("behaviour", "nsqd 1.3.0", "broker", "with ``like_nsqd``")


class Behaviour(NamedTuple):
    """A row of the table: what *observe* returns on each kind of server."""

    text: str
    observe: Callable[[Any], str]
    seen: dict[str, str]


BEHAVIOURS: list[Behaviour] = []


def behaviour(text: str, nsqd: str, *, broker: str = "", like_nsqd: str = "") -> Callable[[Any], Any]:
    """Add a row.  The decorated function returns what it sees on a server.  The broker does as nsqd unless given."""

    def add(observe: Callable[[Any], str]) -> Callable[[Any], str]:
        seen = {"nsqd": nsqd, "embedded": broker or nsqd, "like_nsqd": like_nsqd or nsqd}
        BEHAVIOURS.append(Behaviour(text, observe, seen))
        return observe

    return add


def table() -> str:
    """Return the table, with the differences first."""
    importlib.import_module("tests.contract.test_conformance")
    rows = [HEAD]
    for row in sorted(BEHAVIOURS, key=lambda row: len(set(row.seen.values())) == 1):
        nsqd, *others = row.seen.values()
        rows.append((row.text, nsqd, *("same" if other == nsqd else other for other in others)))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = " ".join("=" * width for width in widths)
    lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def page_with(made: str) -> str:
    """Return the page with the table *made*."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} lacks the comments around the table"
    return before + BEGIN + made + END + after


if __name__ == "__main__":
    from tests.contract.conformance import page_with as write_into  # not __main__'s list of rows
    from tests.contract.conformance import table as current

    PAGE.write_text(write_into(current()), encoding="utf-8")
