"""Bytes that wait for the rest of their unit.

A unit that arrives in many reads is copied a constant number of times in all, whatever the reads' sizes: re-joining it
at each read would cost time that grows with the square of its length.
"""

from __future__ import annotations


class ReceiveBuffer:
    """The unconsumed end of a stream, and how many bytes it takes before it is worth looking at again."""

    __slots__ = ("_bytes", "wanted")

    def __init__(self) -> None:
        self._bytes: bytes | bytearray = b""
        self.wanted = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def keep(self, rest: bytes, wanted: int) -> None:
        """Hold *rest* until there are *wanted* bytes of it."""
        self._bytes, self.wanted = rest, wanted

    def join(self, data: bytes) -> bytes | None:
        """Return what is held followed by *data*, or hold that too and return None while it is not enough."""
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
        """Return what is held and forget it."""
        held, self._bytes, self.wanted = bytes(self._bytes), b"", 0
        return held
