"""Ext headers in the broker: cut from a publish, searched for a trace id, matched by ``ext_filter``.

Source: nsqdserver/protocol_v2.go, nsqd/ext_filter.go @0.3.7-HA.1.13.0.
"""

from __future__ import annotations

import fnmatch
import json
import re
from typing import Any

from gnsq_lite.broker.commands import CommandError, quoted

_MAX_UINT64 = 2**64 - 1


def passes(spec: dict[str, Any], header: bytes | None) -> bool:
    """Whether a message with *header* passes the filter; one that is not understood lets all pass."""
    matches = _matcher(spec)
    if matches is None:
        return True
    return bool(matches(_values(header))) != bool(spec.get("inverse"))


def _values(header: bytes | None) -> dict[str, Any]:
    if header is None:
        return {}
    loaded = json.loads(header)
    return loaded if isinstance(loaded, dict) else {}


def _matcher(spec: dict[str, Any]) -> Any:
    key, value, kind = spec.get("filter_ext_key"), spec.get("filter_data"), spec.get("type")
    if not isinstance(key, str) or not key:
        return None
    if kind == 4:
        pairs = [(one.get("filter_ext_key"), one.get("filter_data")) for one in spec.get("filter_data_list") or []]
        if not pairs or not all(k and v for k, v in pairs) or key not in ("any", "all"):
            return None
        enough = any if key == "any" else all
        return lambda values: enough(values.get(k) == v for k, v in pairs)
    if not isinstance(value, str) or not value:
        return None
    if kind == 1:
        return lambda values: values.get(key) == value
    if kind == 2:
        try:
            pattern = re.compile(value)
        except re.error:
            return None
        return lambda values: isinstance(values.get(key), str) and pattern.search(values[key])
    if kind == 3:
        return lambda values: isinstance(values.get(key), str) and fnmatch.fnmatchcase(values[key], value)
    return None


def cut_header(body: bytes) -> tuple[bytes, bytes]:
    """Return the header and the body of what PUB_EXT sends.  Raises CommandError."""
    length = int.from_bytes(body[:2], "big")
    if len(body) <= 2 + length:
        raise CommandError("E_BAD_BODY", f"invalid body size {len(body)} in ext json header content length")
    return body[2 : 2 + length], body[2 + length :]


def trace_of(header: bytes) -> int | None:
    """Return the trace id among the headers; None without one.  Raises CommandError for what is no JSON, or no id."""
    try:
        loaded = json.loads(header)
    except (ValueError, RecursionError):
        why = f"fail to parse json header:cannot parse JSON: {_json_problem(header)}"
        raise CommandError("E_INVALID_JSON_HEADER", why, fatal=False) from None
    if not isinstance(loaded, dict) or "##trace_id" not in loaded:
        return None
    trace = loaded["##trace_id"]
    if not isinstance(trace, str):
        raise CommandError("INVALID_TRACE_ID", "passin trace id should be string", fatal=False)
    if not trace.isascii() or not trace.isdigit() or int(trace) > _MAX_UINT64:
        raise CommandError("INVALID_TRACE_ID", "invalid trace id", fatal=False)
    return int(trace)


def _json_problem(header: bytes) -> str:
    if not header:
        return 'cannot parse empty string; unparsed tail: ""'
    tail = quoted(header[1:])
    return f'cannot parse object: cannot find opening \'"" for object key; unparsed tail: {tail}'
