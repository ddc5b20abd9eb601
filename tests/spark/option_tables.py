"""Writes the option tables of docs/spark.rst from the dataclasses: ``python -m tests.spark.option_tables``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnsq_lite.spark.nsq_log.options import LogOptions
from gnsq_lite.spark.options import CommonOptions, SinkOptions, SourceOptions, camel

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.rst"
BEGIN, END = ".. options-begin\n", ".. options-end\n"


def rows(cls: type[Any], leave_out: set[str]) -> Iterator[tuple[str, str, str]]:
    for field in dataclasses.fields(cls):
        if field.name in ("nsq", "storage") or field.name in leave_out:
            continue
        default = field.default
        shown = "" if default in ("", None, ()) else str(default).lower() if isinstance(default, bool) else str(default)
        yield camel(field.name), shown, field.metadata["doc"]


def table(title: str, cls: type[Any], leave_out: set[str]) -> str:
    body = [(f"``{name}``", default, doc) for name, default, doc in rows(cls, leave_out)]
    head = ("name", "default", "meaning")
    widths = [max(len(row[index]) for row in [head, *body]) for index in range(3)]
    rule = " ".join("=" * width for width in widths)
    lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in body]
    top = " ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip()
    return "\n".join([title, "~" * len(title), "", rule, top, rule, *lines, rule, ""])


def page_with_tables() -> str:
    """Return the page with its tables as they should be."""
    common = {field.name for field in dataclasses.fields(CommonOptions)}
    tables = "\n".join(
        [
            table("Source and sink", CommonOptions, set()),
            table("Source", SourceOptions, common),
            table("Sink", SinkOptions, common),
            table("Logs (nsq_log)", LogOptions, set()),
        ]
    )
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), encoding="utf-8")
