"""A stand-in for the connection that owns a message."""

from __future__ import annotations

from types import SimpleNamespace

OWNER = SimpleNamespace(read_at=0.0, topic="t", channel="c", address="a:1", msg_timeout=60.0, max_msg_timeout=900.0)
