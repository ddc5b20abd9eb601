"""Converts untrusted decoded JSON into frozen dataclasses.

If a key is missing, the field gets its default.  The functions raise :class:`~gnsq_lite.errors.HTTPResponseError` if
a required key is missing, a value has the wrong type, or a topic or channel name is invalid.  They escape
control characters in strings, so that the strings can be printed.  The field ``raw`` is the unchanged JSON.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from gnsq_lite.errors import HTTPResponseError, InvalidName
from gnsq_lite.text import printable
from gnsq_lite.wire.names import check_channel, check_topic

T = TypeVar("T")
C = TypeVar("C", list[Any], dict[str, Any])

_DIGITS = re.compile("-?[0-9]{1,19}|[0-9]{20}")  # Go's int64 and uint64


def raw() -> Any:
    """Declare the field for the unchanged JSON object."""
    return dataclasses.field(default_factory=dict, repr=False, compare=False)


def listed(kind: type[Any], *, required: bool = False) -> Any:
    """Declare a tuple of *kind* for a JSON list.  It is empty for null, and, unless *required*, for a missing key."""
    return dataclasses.field(default=(), metadata={"kind": kind, "required": required})


def fill(url: str, cls: type[T], data: Any, **given: Any) -> T:
    """Make a *cls*.  Each field gets the value in *given*, or the value in *data* under the field's name.

    The function reads from *data* the fields of type int, bool and str (or None), and the fields that
    :func:`listed` declares.  Other fields must be in *given* or have a default.
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


#: Maps a field's type to the allowed type of the JSON value and to the words for this type in an error.
_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "str": (str, "a string"),
    "bool": (bool, "true or false"),
}


def read(url: str, what: str, value: Any, kind: str) -> Any:
    """Convert *value* to *kind*, a key of _KINDS.  An int may be a JSON string of digits."""
    types, wanted = _KINDS[kind]
    if kind == "int" and isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise HTTPResponseError(url, f"{what} is not {wanted}")
    return printable(value) if kind == "str" else value


def items(url: str, data: Any, key: str, *, required: bool = False) -> list[Any]:
    """Return the list under *key*.  It is empty for null, and, unless *required*, for a missing key."""
    if required and isinstance(data, Mapping) and key not in data:
        raise HTTPResponseError(url, f"the response has no {key}")
    return _nested(url, data, key, list, "a list")


def mapping(url: str, data: Any, key: str) -> dict[str, Any]:
    """Return the object under *key*.  It is empty for null and for a missing key."""
    return _nested(url, data, key, dict, "a JSON object")


def _nested(url: str, data: Any, key: str, kind: type[C], what: str) -> C:
    if not isinstance(data, Mapping):
        raise HTTPResponseError(url, "the response is not a JSON object")
    value = data.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise HTTPResponseError(url, f"{key} is not {what}")
    return value


def names(url: str, data: Any, key: str, *, required: bool = False) -> tuple[str, ...]:
    """Return the topic names (*key* is "topics") or channel names.  Raises HTTPResponseError for an invalid name."""
    check = check_topic if key == "topics" else check_channel
    found = items(url, data, key, required=required)
    try:
        for name in found:
            check(name)
    except (InvalidName, TypeError) as error:
        raise HTTPResponseError(url, f"{key}: {printable(str(error))}") from None
    return tuple(found)
