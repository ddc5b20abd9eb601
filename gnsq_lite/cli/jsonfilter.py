"""What ``gnsq-lite relay`` passes on of JSON messages: as nsq_to_nsq judges and writes them."""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED = {letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


class Filter:
    """Passes messages whose JSON object has a field, or a field of a value; and may keep only some fields."""

    def __init__(self, field: str | None, value: str | None, keep: tuple[str, ...]) -> None:
        self._field, self._value, self._keep = field, value or None, keep
        try:
            self._number = float(value or "")
        except ValueError:
            self._number = float("nan")

    def apply(self, body: bytes) -> bytes | None:
        """Return what is to be published; None: nothing.  A body that is no JSON object passes only unfiltered."""
        if self._field is None and not self._keep:
            return body
        try:
            record = json.loads(body)
        except (ValueError, RecursionError):  # no JSON, or nested beyond what is read here
            return None
        if not isinstance(record, dict) or not self._passes(record):
            return None
        return written({name: record[name] for name in self._keep if name in record}) if self._keep else body

    def _passes(self, record: dict[str, Any]) -> bool:
        if self._field is None:
            return True
        if self._field not in record:
            return False
        found = record[self._field]
        if self._value is None:
            return True
        if isinstance(found, str):
            return found == self._value
        return isinstance(found, (int, float)) and not isinstance(found, bool) and found == self._number


def written(record: Any) -> bytes:
    """Return JSON as Go writes it: no spaces, keys sorted, whole numbers without a point, no ``<>&``."""
    text = json.dumps(_whole(record), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    text = re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPED[found[0]], text)
    return text.encode("utf-8", "replace")


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e18 else value
