"""Encodes and decodes JSON as Go's encoding/json does, so that replies and errors match nsqd's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INT_LIMITS = {"int": (-(1 << 63), (1 << 63) - 1), "int32": (-(1 << 31), (1 << 31) - 1)}


class NotDecodable(ValueError):
    """Go could not unmarshal the bytes into the struct."""


def encode(value: Any) -> bytes:
    """Encode *value* as ``json.Marshal`` does: compact, with <, > and & escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "replace")


def decode(data: bytes, fields: Mapping[str, str]) -> dict[str, Any]:
    """Decode *data* into a dict with a value for each of *fields*.  Raises NotDecodable.

    *fields* maps the names of a Go struct's fields to "str", "bool", "int" or "int32".  As in Go, names match
    case-insensitively, null gives the zero value, and unknown names are ignored.
    """
    try:
        loaded = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NotDecodable(str(error)) from None
    values: dict[str, Any] = {name: _zero(kind) for name, kind in fields.items()}
    if loaded is None:
        return values
    if not isinstance(loaded, dict):
        raise NotDecodable("not an object")
    for key, value in loaded.items():
        name = key.lower()
        if name in fields and value is not None:
            values[name] = _checked(name, fields[name], value)
    return values


def _refuse_constant(name: str) -> None:
    raise NotDecodable(f"invalid literal {name}")


def _zero(kind: str) -> Any:
    return {"str": "", "bool": False}.get(kind, 0)


def _checked(name: str, kind: str, value: Any) -> Any:
    if kind == "str":
        good = isinstance(value, str)
    elif kind == "bool":
        good = isinstance(value, bool)
    else:
        low, high = _INT_LIMITS[kind]
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if not good:
        raise NotDecodable(f"{name} is no {kind}")
    return value
