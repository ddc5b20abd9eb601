"""nsqd's replies in the handshake besides IDENTIFY's: AUTH, and the settings that nsqd did not grant.

:mod:`gnsq_lite.net.connection` does the handshake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnsq_lite.errors import printable
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.wire.identify import Negotiated, load_object


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthReply:
    """nsqd's response to AUTH (SEC-4)."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


def parse_auth_reply(body: bytes) -> AuthReply:
    """Parse nsqd's response to AUTH; a value of the wrong type gives the default.  Raises ProtocolError."""
    values = load_object(body)
    count = values.get("permission_count", 0)
    return AuthReply(
        identity=_text(values.get("identity")),
        identity_url=_text(values.get("identity_url")),
        permission_count=count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0,
    )


def _text(value: object) -> str:
    return printable(value[:256]) if isinstance(value, str) else ""


def not_granted(options: ConnectionOptions, negotiated: Negotiated) -> list[str]:
    """Return a log line for each requested setting that nsqd did not grant, except TLS (NEG-4).

    A server that does not negotiate grants no setting.
    """
    lines = []
    compression = options.compression
    if compression is not None and not getattr(negotiated, compression):
        lines.append(f"{compression} was requested, but nsqd did not grant it; the connection is not compressed")
    requested: dict[str, Any] = {"sample_rate": options.sample_rate or None, "msg_timeout": options.msg_timeout}
    if negotiated.deflate:
        requested["deflate_level"] = options.deflate_level
    for name, wanted in requested.items():
        got = getattr(negotiated, name)
        if wanted is not None and (not negotiated.negotiated or abs(got - wanted) >= 0.001):
            used = got if negotiated.negotiated else "its own setting, because it does not negotiate"
            lines.append(f"{name}={wanted} was requested; nsqd uses {used}")
    return lines
