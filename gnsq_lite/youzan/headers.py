"""Encodes the headers of a message as JSON (YZ-15).  The headers may contain a tag (YZ-16) and a trace id.

The functions raise OptionError for headers with which the server would fail or close the connection.
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

#: Maximum nesting of objects and arrays that nsqd's JSON parser accepts.
_MAX_LEVELS = 300
# internal/ext/ext.go:20.  Youzan's client checks tags, but the server does not.
_TAG = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_STRINGS, _NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"'), re.compile(rb"[][{}]").findall


def check_tag(tag: object, option: str = "tag") -> str:
    """Return *tag* if it has 1 to 100 letters, digits, ``_`` or ``-``.  Raises OptionError for any other value."""
    if isinstance(tag, str) and len(tag) <= MAX_TAG and _TAG(tag):
        return tag
    raise OptionError(option, tag, f"must be 1 to {MAX_TAG} letters, digits, '_' or '-'")


def check_trace_id(trace_id: int) -> int:
    """Return *trace_id* if it is an unsigned 64-bit number.  Raises OptionError for any other value."""
    return check_number("trace_id", trace_id, 0, MAX_UINT64, whole=True)


def encode_headers(headers: Mapping[str, Any], trace_id: int | None = None) -> bytes:
    """Encode *headers* as JSON.  Unless *trace_id* is None, add it as the header ``##trace_id``.

    Raises OptionError if *headers* is not a JSON object, if the tag or the trace id is invalid, and if any other name
    starts with ``##``, which the server reserves.  Raises OptionError also for more than 300 levels and for more than
    65506 bytes, because nsqd would panic.
    """
    if not isinstance(headers, Mapping):
        raise OptionError("headers", headers, "must be a mapping of names to JSON values")
    named = dict(headers)
    for key in named:
        if not isinstance(key, str):
            raise OptionError("headers", key, "the names of headers must be str")
        if key.startswith(RESERVED) and key != TAG_KEY:
            why = f"names that start with {RESERVED!r} are reserved for the server; pass a trace id as trace_id="
            raise OptionError("headers", key, why)
    if TAG_KEY in named:
        check_tag(named[TAG_KEY], f"headers[{TAG_KEY!r}]")
    if trace_id is not None:
        named[TRACE_ID_KEY] = str(check_trace_id(trace_id))
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
