"""How the fields of option dataclasses are declared, and checked: default, range and documentation in one place."""

from __future__ import annotations

import dataclasses
from typing import Any

from gnsq_lite.errors import OptionError


def between(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    doc: str = "",
) -> Any:
    """Declare a field with a default, an inclusive range and a line of documentation."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "doc": doc})


def documented(default: Any, doc: str) -> Any:
    """Declare a field that has no range."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def check_ranges(options: Any) -> None:
    """Raise OptionError for the first field of the dataclass *options* that is outside its declared range."""
    for spec in dataclasses.fields(options):
        low, high = spec.metadata.get("low"), spec.metadata.get("high")
        value = getattr(options, spec.name)
        if value is None or (low is None and high is None):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise OptionError(spec.name, value, "must be a number")
        if value != value:
            raise OptionError(spec.name, value, "must be a number, not NaN")
        if isinstance(spec.default, int) and not isinstance(value, int):
            raise OptionError(spec.name, value, "must be a whole number")
        if (low is not None and value < low) or (high is not None and value > high):
            raise OptionError(spec.name, value, f"must be between {low} and {high}")
