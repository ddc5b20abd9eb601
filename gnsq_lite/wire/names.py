"""Checks the names of topics and channels (WIRE-6).

A space or newline in a name would start another word or another command, so names are checked before any byte is sent.
The check uses ``fullmatch`` because ``$`` would accept a final newline.
"""

from __future__ import annotations

import re

from gnsq_lite.errors import InvalidName
from gnsq_lite.wire.constants import EPHEMERAL, MAX_NAME

# From internal/protocol/names.go:7 @v1.3.0.  The length is checked separately.
_VALID = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch
_ALLOWED = re.compile(r"[.a-zA-Z0-9_-]").fullmatch


def check_topic(name: str, kind: str = "topic") -> bytes:
    """Check and encode the name of a topic, or of another *kind*.  Raises InvalidName."""
    if isinstance(name, str) and len(name) <= MAX_NAME and _VALID(name):
        return str.encode(name, "ascii")
    raise InvalidName(kind, name, _reason(name))


def check_channel(name: str) -> bytes:
    """Check and encode the name of a channel.  Raises InvalidName."""
    return check_topic(name, "channel")


def _reason(name: object) -> str:
    if isinstance(name, (bytes, bytearray)):
        return "it is bytes and must be str; call .decode() on it"
    if not isinstance(name, str):
        return f"it is {type(name).__name__} and must be str"
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME:
        return f"it is {len(name)} characters long; nsqd accepts at most {MAX_NAME}, {EPHEMERAL!r} included"
    stem = name.removesuffix(EPHEMERAL)
    if not stem:
        return f"there is no name before {EPHEMERAL!r}"
    at, bad = next((at, c) for at, c in enumerate(stem) if not _ALLOWED(c))
    return f"{bad!r} at position {at}; letters, digits, '.', '_', '-' and a final {EPHEMERAL!r} are allowed"
