"""What a session stands on: the connection below it, and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that was started and can be stopped."""

    def stop(self) -> None:
        """Stop it; doing so again is harmless."""


class Transport(Protocol):
    """The connection under a session."""

    remote_address: str
    tls_info: dict[str, Any]
    write_timeout: float

    def send(self, data: bytes) -> None:
        """Send, or keep until the peer takes it."""

    def unsent(self) -> int:
        """Return how many bytes the peer has not taken yet."""

    def start_tls(self, rest: bytes, done: Callable[[str | None], None]) -> None:
        """Start TLS as a server, *rest* being what has come of it; call *done* with None, or with what went wrong."""

    def start_compression(self, kind: str, level: int) -> None:
        """From here on "snappy" or "deflate", both ways."""

    def decode(self, data: bytes) -> None:
        """Decompress *data* and hand it on as if it had just come."""

    def hold(self, held: bool) -> None:
        """Read nothing from the peer while held."""

    def close(self) -> None:
        """Close once everything is sent."""

    def refuse(self, unread: int) -> None:
        """Close; with a reset where *unread* bytes of the peer's would be left."""

    def reset(self) -> None:
        """Close at once with a reset."""
