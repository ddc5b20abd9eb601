"""Buffers an incomplete frame or chunk until the rest arrives.

The parts of a frame that arrives in many reads are joined only at its end, because joining them after each read would
take quadratic time.
"""

from __future__ import annotations


class ReceiveBuffer:
    """The undecoded end of a stream, and the number of bytes needed to continue decoding."""

    def __init__(self) -> None:
        self._bytes: bytes | bytearray = b""
        self.wanted = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def keep(self, rest: bytes, wanted: int) -> None:
        """Hold *rest* until at least *wanted* bytes have arrived."""
        self._bytes, self.wanted = rest, wanted

    def join(self, data: bytes) -> bytes | None:
        """Append *data* to the held bytes.  Return all bytes if they are enough, or else hold them and return None."""
        held = self._bytes
        if not held:
            return data
        if len(held) + len(data) >= self.wanted:
            if isinstance(held, bytearray):
                held += data
                return bytes(held)
            return held + data
        if not isinstance(held, bytearray):
            self._bytes = held = bytearray(held)
        held += data
        return None

    def take(self) -> bytes:
        """Remove and return the held bytes."""
        held, self._bytes, self.wanted = bytes(self._bytes), b"", 0
        return held
