"""``ext_filter`` of Youzan's nsqd: which messages a client gets, by their headers (nsqd/ext_filter.go)."""

from __future__ import annotations

import fnmatch
import json
import re
from typing import Any


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
