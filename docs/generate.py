"""Writes options.rst from the option dataclasses, so that it cannot drift.  ``python docs/generate.py``"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gnsq_lite import options

KINDS: list[tuple[str, str, type[Any]]] = [
    ("Connection", "Reader and Writer.", options.ConnectionOptions),
    ("Discovery", "Reader and Writer.", options.LookupOptions),
    ("Retries", "Reader.", options.RetryOptions),
    ("Reconnection", "Reader.", options.ReconnectOptions),
    ("Backoff", "``Reader(backoff=BackoffOptions(...))``.", options.BackoffOptions),
    ("Publishing", "Writer.", options.WriterOptions),
    ("Reconnection of a Writer", "Writer.", options.WriterReconnectOptions),
    ("TLS", "``tls=TLSOptions(...)``.", options.TLSOptions),
    ("HTTP clients", "``NsqdClient`` and ``LookupdClient`` of ``gnsq_lite.http``.", options.HTTPOptions),
]


def shown(spec: dataclasses.Field[Any]) -> str:
    """Return a field's default as it is written."""
    if spec.default is dataclasses.MISSING:
        return "{}"
    if spec.name == "user_agent":
        return "'gnsq_lite/VERSION'"
    return repr(spec.default)


def span(spec: dataclasses.Field[Any]) -> str:
    """Return a field's range."""
    low, high = spec.metadata.get("low"), spec.metadata.get("high")
    return "" if low is None and high is None else f"{low:g} to {high:g}"


def text() -> str:
    """Return the page."""
    lines = [
        "Options",
        "=======",
        "",
        "Every option, generated from the dataclasses in ``gnsq_lite/options.py``.  Durations are seconds.  A value",
        "out of range raises ``OptionError`` at construction.  What is in the signature of ``Reader`` and ``Writer``",
        "is described in their docstrings.",
        "",
    ]
    for title, where, kind in KINDS:
        lines += [title, "-" * len(title), "", where, "", ".. list-table::", "   :header-rows: 1", ""]
        lines += ["   * - name", "     - default", "     - range", "     - meaning"]
        for spec in dataclasses.fields(kind):
            meaning = str(spec.metadata.get("doc", "")).replace("*", "\\*")
            cells = [f"``{spec.name}``", f"``{shown(spec)}``", span(spec), meaning]
            lines += [f"   {'*' if at == 0 else ' '} - {cell}".rstrip() for at, cell in enumerate(cells)]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (Path(__file__).parent / "options.rst").write_text(text(), encoding="utf-8")
