"""A fake clock, and a decoder of one message.  No test of a policy sleeps."""

from __future__ import annotations

import struct

from gnsq_lite.wire.frames import FrameDecoder


class FakeClock:
    """A clock that changes only in advance()."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_700_000_000.0 + self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now += seconds


def decode_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Return (timestamp_ns, attempts, id, body) of a message frame's data, as the decoder gives them."""
    decoder = FrameDecoder(1 << 20, lambda owner, *fields: fields)
    ((fields,), _) = decoder.feed(struct.pack(">iI", len(data) + 4, 2) + data)
    return fields
