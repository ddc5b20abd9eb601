"""Converts untrusted decoded JSON into frozen dataclasses.

A missing key gives the field's default.  A missing key without a default, a value of the wrong type, and an invalid
topic or channel name raise :class:`~gnsq_lite.errors.HTTPResponseError`.  Control characters in strings are escaped, so
that the strings can be printed.  The field ``raw`` has the unchanged JSON.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
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
        elif field.name not in values and (type_ := str(field.type).removesuffix(" | None")) in _KINDS:
            value = data.get(field.name)
            if value is not None:
                values[field.name] = read(url, f"{kind}.{field.name}", value, type_)
            elif field.default is dataclasses.MISSING:
                raise HTTPResponseError(url, f"{kind} has no {field.name}")
    return cls(**values)


#: JSON types of each type of a field, and the words for them in an error.
_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "a string"),
    "bool": (bool, "true or false"),
}


def read(url: str, what: str, value: Any, kind: str) -> Any:
    """Convert *value* to *kind*, a key of the table above; an int may be a string of digits."""
    types, wanted = _KINDS[kind]
    if kind == "int" and isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise HTTPResponseError(url, f"{what} is not {wanted}")
    if kind == "float" and not abs(value) <= sys.float_info.max:  # an integer in JSON may have any length
        raise HTTPResponseError(url, f"{what} is too large")
    return float(value) if kind == "float" else printable(value) if kind == "str" else value


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
