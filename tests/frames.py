"""Frames as nsqd writes them, made without the library's code."""

from __future__ import annotations

import struct

ID = b"0123456789abcdef"


def frame(kind: int, data: bytes) -> bytes:
    """Return a frame: kind 0 is a response, 1 an error, 2 a message."""
    return struct.pack(">ii", len(data) + 4, kind) + data


def message(body: bytes, timestamp: int = 5, attempts: int = 1, id: bytes = ID) -> bytes:
    """Return the frame of a message; *timestamp* in nanoseconds."""
    return frame(2, struct.pack(">qH", timestamp, attempts) + id + body)


OK = frame(0, b"OK")
HEARTBEAT = frame(0, b"_heartbeat_")
