"""Declares and checks the fields of option dataclasses, each with its default, range and documentation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

from gnsq_lite.errors import OptionError
from gnsq_lite.units import parse_rate

T = TypeVar("T")


def count(default: float | None, low: float, high: float, unit: str, doc: str, span: str = "") -> Any:
    """Declare a number of *unit*, for example of messages, with an inclusive range and a line of documentation.

    *span* describes a range that *low* and *high* do not describe completely.
    """
    metadata = {"low": low, "high": high, "unit": unit, "span": span, "doc": doc}
    return dataclasses.field(default=default, metadata=metadata)


def duration(default: float | None, low: float, high: float, doc: str) -> Any:
    """Declare a number of seconds."""
    return count(default, low, high, "seconds", doc)


def size(default: int | None, low: int, high: int, doc: str, span: str = "") -> Any:
    """Declare a number of bytes."""
    return count(default, low, high, "bytes", doc, span)


def share(default: float | None, doc: str) -> Any:
    """Declare a share between 0 and 1."""
    return count(default, 0.0, 1.0, "share", doc)


def documented(default: Any, doc: str, *, unit: str = "", span: str = "") -> Any:
    """Declare a field without bounds for check_ranges().  *span* describes the allowed values."""
    return dataclasses.field(default=default, metadata={"unit": unit, "span": span, "doc": doc})


def hook(arguments: str, doc: str) -> Any:
    """Declare an optional callback.  *arguments* names its parameters, and *doc* says when the library calls it."""
    return dataclasses.field(default=None, metadata={"arguments": arguments, "doc": doc})


def per_second(name: str, value: Any) -> float | None:
    """Convert ``"100/s"``, ``"5/m"`` or ``"1000/h"`` to messages per second, and None to None.  Raises OptionError."""
    if value is None:
        return None
    try:
        rate = parse_rate(value) if isinstance(value, str) else 0.0
    except ValueError:
        rate = 0.0
    if not 1e-6 <= rate <= 1e6:
        raise OptionError(name, value, "must be like '100/s', '5/m' or '1000/h', and 0.000001/s to 1000000/s")
    return rate


def check_number(name: str, value: T, low: float, high: float, *, whole: bool = False) -> T:
    """Check that *value* is a finite number from *low* to *high*, and return it.  Raises OptionError."""
    number: Any = value
    is_number = isinstance(number, int if whole else (int, float)) and not isinstance(number, bool)
    if not is_number or not low <= number <= high or number == math.inf:
        allowed = f"of at least {low}, and finite" if high == math.inf else f"between {low} and {high}"
        raise OptionError(name, value, f"must be a {'whole ' if whole else ''}number {allowed}")
    return value


def check_choice(name: str, value: T, *allowed: object) -> T:
    """Check that *value* is one of *allowed*, and return it.  Raises OptionError."""
    if value not in allowed:
        *first, last = (repr(each) for each in allowed)
        raise OptionError(name, value, f"must be {', '.join(first)} or {last}")
    return value


def check_ranges(options: Any) -> None:
    """Raise OptionError for the first field of the dataclass *options* that is outside its declared range."""
    for spec in dataclasses.fields(options):
        if "low" in spec.metadata:
            value, kinds = getattr(options, spec.name), str(spec.type).split(" | ")
            if value is not None or "None" not in kinds:
                check_number(spec.name, value, spec.metadata["low"], spec.metadata["high"], whole="int" in kinds)


def check_at_most(options: Any, name: str, limit: str) -> None:
    """Raise OptionError if the field *name* of *options* is greater than the field *limit*; skip None."""
    value, most = getattr(options, name), getattr(options, limit)
    if value is not None and most is not None and value > most:
        raise OptionError(name, value, f"is above {limit} ({most})")
