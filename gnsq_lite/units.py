"""Reads durations, sizes, rates and times in commands, options of Spark, Workers and replays."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
for _word, _unit in {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}.items():
    _SECONDS[_word] = _SECONDS[f"{_word}s"] = _SECONDS[_unit]
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(milliseconds?|seconds?|minutes?|hours?|days?|us|ms|s|m|h|d)\s*", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.ASCII | re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Convert a text such as ``1h30m``, ``250ms``, ``2 minutes`` or ``90`` to seconds.  Raises ValueError."""
    if _WHOLE.fullmatch(text):
        return sum(float(each[1]) * _SECONDS[each[2]] for each in _PART.finditer(text))
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write 5m, 250ms, 1h30m or a number of seconds")
    return float(text)


def parse_size(text: str) -> int:
    """Convert a text such as ``64k`` (64 KiB), with an optional k, m, g or t, to bytes.  Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write 65536, 64k, 16m or 1g")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2].lower()]


def parse_rate(text: str) -> float:
    """Convert ``"100/s"``, ``"5/m"`` or ``"1000/h"`` to a number per second.  Raises ValueError."""
    number, _, unit = text.replace(" ", "").partition("/")
    if unit not in ("s", "m", "h"):
        raise ValueError(f"{text!r} is not a rate: write 100/s, 5/m or 1000/h")
    return float(number) / _SECONDS[unit]


def parse_time(text: str, now: float) -> float:
    """Convert an age such as ``2h``, a date such as ``20261121``, or an ISO time to seconds since 1970.

    A time without an offset is in UTC.  Raises ValueError.
    """
    if re.fullmatch(r"\d{8}", text, re.ASCII):
        found = datetime.strptime(text, "%Y%m%d")
    else:
        try:
            return now - parse_duration(text)
        except ValueError:
            # Python 3.10 reads no Z, no offset without a colon, and only fractions of 3 or 6 digits.
            iso = re.sub(r"(:\d\d[.,\d]*[+-]\d\d)(\d\d)$", r"\1:\2", re.sub(r"[Zz]$", "+00:00", text))
            found = datetime.fromisoformat(re.sub(r"[.,](\d{1,6})\d*", lambda part: f".{part[1]:0<6}", iso))
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
