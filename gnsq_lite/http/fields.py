"""Converts untrusted decoded JSON into frozen dataclasses.

A missing key gives the field's default.  A missing key without a default, a value of the wrong type, and an invalid
topic or channel name raise :class:`~gnsq_lite.errors.HTTPResponseError`.  Control characters in strings are escaped, so
that the strings can be printed.  The field ``raw`` has the unchanged JSON.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gnsq_lite.errors import HTTPResponseError, InvalidName, printable
from gnsq_lite.wire.names import check_channel, check_topic

T = TypeVar("T")
C = TypeVar("C", list[Any], dict[str, Any])

_DIGITS = re.compile("-?[0-9]{1,19}|[0-9]{20}")  # Go's int64 and uint64

#: Longest list that a response may contain.
MAX_LISTED = 100_000


def raw() -> Any:
    """Declare the field for the unchanged JSON object."""
    return dataclasses.field(default_factory=dict, repr=False, compare=False)


def listed(kind: type[Any], *, required: bool = False) -> Any:
    """Declare a tuple of *kind* for a JSON list; null and, unless *required*, a missing key give an empty tuple."""
    return dataclasses.field(default=(), metadata={"kind": kind, "required": required})


def fill(url: str, cls: type[T], data: Any, **given: Any) -> T:
    """Make a *cls* from the keys of *data* with the names of its fields; values in *given* take precedence.

    This reads fields of type int, float, bool and str (or None) and fields declared by :func:`listed`.  Other fields
    must be *given* or have a default.
    """
    kind = cls.__name__
    if not isinstance(data, Mapping):
        raise HTTPResponseError(url, f"{kind} is not a JSON object")
    values = dict(given)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name == "raw":
            values.setdefault("raw", data)
        elif "kind" in field.metadata:
            entries = items(url, data, field.name, required=field.metadata["required"])
            values[field.name] = tuple(fill(url, field.metadata["kind"], entry) for entry in entries)
        elif field.name not in values and field.type in _READERS:
            value = data.get(field.name)
            if value is not None:
                values[field.name] = _READERS[str(field.type)](url, f"{kind}.{field.name}", value)
            elif field.default is dataclasses.MISSING:
                raise HTTPResponseError(url, f"{kind} has no {field.name}")
    return cls(**values)


def number(url: str, what: str, value: Any) -> int:
    """Convert a whole number or a string of digits to int."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HTTPResponseError(url, f"{what} is not a whole number")
    return value


def text(url: str, what: str, value: Any) -> str:
    """Check that *value* is a string; return it with control characters escaped."""
    if not isinstance(value, str):
        raise HTTPResponseError(url, f"{what} is not a string")
    return printable(value)


def _flag(url: str, what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise HTTPResponseError(url, f"{what} is not true or false")
    return value


def _float(url: str, what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise HTTPResponseError(url, f"{what} is not a number")
    try:
        found = float(value)
    except OverflowError:  # an integer in JSON may have any length
        found = math.inf
    if not math.isfinite(found):
        raise HTTPResponseError(url, f"{what} is too large")
    return found


_READERS: dict[str, Callable[[str, str, Any], Any]] = {
    "int": number,
    "int | None": number,
    "str": text,
    "str | None": text,
    "bool": _flag,
    "bool | None": _flag,
    "float": _float,
}


def items(url: str, data: Any, key: str, *, required: bool = False) -> list[Any]:
    """Return the list under *key*; null and, unless *required*, a missing key give an empty list."""
    if required and isinstance(data, Mapping) and key not in data:
        raise HTTPResponseError(url, f"the response has no {key}")
    return _nested(url, data, key, list, "a list")


def mapping(url: str, data: Any, key: str) -> dict[str, Any]:
    """Return the object under *key*; null and a missing key give an empty object."""
    return _nested(url, data, key, dict, "a JSON object")


def _nested(url: str, data: Any, key: str, kind: type[C], what: str) -> C:
    if not isinstance(data, Mapping):
        raise HTTPResponseError(url, "the response is not a JSON object")
    value = data.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise HTTPResponseError(url, f"{key} is not {what}")
    if len(value) > MAX_LISTED:
        raise HTTPResponseError(url, f"{key} has {len(value)} entries; at most {MAX_LISTED} are accepted")
    return value


def names(url: str, data: Any, key: str, *, required: bool = False) -> tuple[str, ...]:
    """Return the topic names (``topics``) or channel names under *key*; a name that nsqd would refuse is an error."""
    check = check_topic if key == "topics" else check_channel
    found = items(url, data, key, required=required)
    try:
        for name in found:
            check(name)
    except (InvalidName, TypeError) as error:
        raise HTTPResponseError(url, f"{key}: {printable(str(error))}") from None
    return tuple(found)
