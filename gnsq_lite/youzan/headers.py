"""Encodes ext headers: a JSON object sent with the body (YZ-15) that may hold the tag and the trace id (YZ-16).

Headers that would make the server fail, or break the connection, raise OptionError here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.youzan.constants import MAX_HEADER_BYTES, MAX_TAG, MAX_UINT64, RESERVED, TAG_KEY, TRACE_ID_KEY

#: Levels of objects and arrays that nsqd's JSON parser accepts.
_MAX_LEVELS = 300
# internal/ext/ext.go:20; Youzan's client checks tags, the server does not
_TAG = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_STRINGS, _NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"'), re.compile(rb"[][{}]").findall


def check_tag(tag: object, option: str = "tag") -> str:
    """Check *tag*: 1 to 100 letters, digits, ``_`` and ``-``.  Raises OptionError."""
    if isinstance(tag, str) and len(tag) <= MAX_TAG and _TAG(tag):
        return tag
    raise OptionError(option, tag, f"must be 1 to {MAX_TAG} letters, digits, '_' or '-'")


def check_trace_id(trace_id: int) -> int:
    """Check *trace_id*, an unsigned 64-bit number.  Raises OptionError."""
    return check_number("trace_id", trace_id, 0, MAX_UINT64, whole=True)


def encode_headers(headers: Mapping[str, Any], trace_id: int | None = None) -> bytes:
    """Encode *headers* as JSON, with *trace_id* under its key if given.

    Raises OptionError for headers that are no JSON object with str keys, for an invalid tag or trace id, for other keys
    that start with ``##`` (reserved by the server), for more than 65506 bytes (they make nsqd panic), and for more than
    300 levels.
    """
    if not isinstance(headers, Mapping):
        raise OptionError("headers", headers, "must be a mapping of names to JSON values")
    named = dict(headers)
    for key in named:
        if not isinstance(key, str):
            raise OptionError("headers", key, "its keys must be str")
        if key.startswith(RESERVED) and key not in (TRACE_ID_KEY, TAG_KEY):
            raise OptionError("headers", key, f"names that start with {RESERVED!r} are the server's own")
    if TAG_KEY in named:
        check_tag(named[TAG_KEY], f"headers[{TAG_KEY!r}]")
    if trace_id is not None:
        named[TRACE_ID_KEY] = str(check_trace_id(trace_id))
    elif TRACE_ID_KEY in named:
        _check_trace_text(named[TRACE_ID_KEY])
    try:
        data = json.dumps(named, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # a UnicodeError is a ValueError
        raise OptionError("headers", headers, f"cannot be written as JSON: {error}") from None
    if len(data) > MAX_HEADER_BYTES:
        raise OptionError("headers", f"<{len(data)} bytes of JSON>", f"must be at most {MAX_HEADER_BYTES} bytes")
    if data.count(b"[") + data.count(b"{") > _MAX_LEVELS:
        levels = accumulate(1 if sign in b"[{" else -1 for sign in _NESTING(_STRINGS.sub(b"", data)))
        if max(levels) > _MAX_LEVELS:
            raise OptionError("headers", f"<{len(data)} bytes of JSON>", f"must have at most {_MAX_LEVELS} levels")
    return data


def _check_trace_text(text: object) -> None:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or int(text[:21]) > MAX_UINT64:
        raise OptionError(TRACE_ID_KEY, text, "must be a str of decimal digits, at most 2**64 - 1")


def has_trace_id(headers: Mapping[str, Any] | None) -> bool:
    """Return whether the server answers a PUB_EXT with these *headers* with a trace reply."""
    return headers is not None and TRACE_ID_KEY in headers
