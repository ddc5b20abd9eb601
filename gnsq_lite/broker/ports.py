"""What a session needs around it: the connection below, the nsqd it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gnsq_lite.broker.auth import Authorizer
    from gnsq_lite.broker.faults import Script
    from gnsq_lite.broker.options import BrokerOptions
    from gnsq_lite.broker.session import Session
    from gnsq_lite.broker.topics import Topics


class Timer(Protocol):
    """Something that was started and can be stopped."""

    def stop(self) -> None:
        """Stop it; doing so again is harmless."""


class Link(Protocol):
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


class Server(Protocol):
    """What a session needs of its nsqd."""

    options: BrokerOptions
    topics: Topics
    authorizer: Authorizer | None
    script: Script

    def flush_soon(self, session: Session) -> None:
        """Call the session's flush at the end of this turn of the loop."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once."""

    def every(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* again and again."""

    def spawn(self, work: Callable[[], None]) -> None:
        """Run *work*, which may wait."""

    def has_tls(self) -> bool:
        """Whether clients can ask for TLS."""

    def ended(self, session: Session) -> None:
        """The session has closed."""
