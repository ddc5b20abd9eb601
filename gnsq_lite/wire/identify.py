"""Encodes IDENTIFY, and parses nsqd's replies to IDENTIFY (NEG-1 to NEG-4) and AUTH (SEC-4).

This module converts seconds to milliseconds and back.  It checks the keys of the reply to IDENTIFY that the library
uses, and raises :class:`~gnsq_lite.errors.ProtocolError` for a value that nsqd cannot have sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from gnsq_lite.errors import OptionError, ProtocolError
from gnsq_lite.options import ConnectionOptions
from gnsq_lite.text import brief, printable
from gnsq_lite.wire.constants import (
    DEFAULT_MAX_MSG_TIMEOUT,
    DEFAULT_MAX_RDY_COUNT,
    DEFAULT_MSG_TIMEOUT,
    OK,
)

#: Number of characters to which texts from the server are cut.
_MAX_TEXT: Final = 256
_MAX_INT64: Final = 2**63 - 1

#: Integers in the reply, with their ranges.
_NUMBERS: Final = {
    "max_rdy_count": (0, _MAX_INT64),
    "max_msg_timeout": (1, _MAX_INT64),
    "msg_timeout": (1, _MAX_INT64),
    "deflate_level": (0, 9),
    "sample_rate": (0, 99),
}
_MILLISECONDS: Final = {"max_msg_timeout", "msg_timeout"}
_FLAGS: Final = {"tls_v1", "snappy", "deflate", "auth_required"}

#: Keys that ``extra_identify`` must not set, because they have their own options.
NEGOTIATED_KEYS: Final = frozenset(
    {
        "feature_negotiation",
        "heartbeat_interval",
        "output_buffer_size",
        "output_buffer_timeout",
        "tls_v1",
        "snappy",
        "deflate",
        "deflate_level",
        "sample_rate",
        "msg_timeout",
    }
)


def build_identify(options: ConnectionOptions, *, hostname_default: str, heartbeats: bool = True) -> bytes:
    """Build the JSON of IDENTIFY (NEG-1).

    Args:
        hostname_default: Default of ``hostname``.  Its first label is the default of ``client_id``.
        heartbeats: False disables heartbeats.  nsqd refuses SUB on such a connection.
    Raises:
        OptionError: ``extra_identify`` sets a key that has its own option, or is not JSON.
    """
    hostname = options.hostname if options.hostname is not None else hostname_default
    client_id = options.client_id if options.client_id is not None else hostname_default.partition(".")[0]
    keys: dict[str, Any] = {
        "client_id": client_id,
        "hostname": hostname,
        "user_agent": options.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": _to_ms(options.heartbeat_interval) if heartbeats else -1,
    }
    timeout = options.output_buffer_timeout
    optional = {
        "output_buffer_size": options.output_buffer_size,
        "output_buffer_timeout": -1 if timeout == -1 else _to_ms(timeout),
        "tls_v1": options.tls is not None or None,
        "snappy": options.compression == "snappy" or None,
        "deflate": options.compression == "deflate" or None,
        "deflate_level": options.deflate_level if options.compression == "deflate" else None,
        "sample_rate": options.sample_rate or None,
        "msg_timeout": _to_ms(options.msg_timeout),
    }
    keys.update({key: value for key, value in optional.items() if value is not None})
    for key in options.extra_identify:
        if key in NEGOTIATED_KEYS or key in ("client_id", "hostname", "user_agent"):
            raise OptionError("extra_identify", key, "has an option of the same meaning; use that")
    keys.update(options.extra_identify)
    try:
        return json.dumps(keys, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError("extra_identify", sorted(map(str, options.extra_identify)), f"is not JSON: {error}") from None


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiated:
    """Settings of a connection after IDENTIFY (NEG-3).  Durations are seconds.

    Values that are not in the reply are nsqd's defaults.  Features that are not in the reply are off (NEG-2).
    """

    #: False if the server answered with OK and no settings.
    negotiated: bool = False
    #: The interval that the client requested.
    heartbeat_interval: float = 30.0
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    version: str = ""
    max_msg_timeout: float = DEFAULT_MAX_MSG_TIMEOUT
    msg_timeout: float = DEFAULT_MSG_TIMEOUT
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    sample_rate: int = 0
    auth_required: bool = False
    #: The whole reply.  Other variants of NSQ add keys.
    raw: Mapping[str, Any] = field(default_factory=dict)


def parse_identify_reply(body: bytes, options: ConnectionOptions) -> Negotiated:
    """Parse and check the reply to IDENTIFY.  Raises ProtocolError for an invalid reply.

    A feature that nsqd turned on without a request is an error, because nsqd encodes the next bytes with that feature.
    """
    if body == OK:
        return Negotiated(heartbeat_interval=options.heartbeat_interval)
    values = load_object(body)
    found: dict[str, Any] = {"heartbeat_interval": options.heartbeat_interval, "raw": values}
    for key, (low, high) in _NUMBERS.items():
        if key in values:
            found[key] = _number(key, values[key], low, high)
    for key in _MILLISECONDS & found.keys():
        found[key] /= 1000
    for key in _FLAGS & values.keys():
        if not isinstance(values[key], bool):
            raise ProtocolError(f"{key} is {brief(values[key])!r}, neither true nor false")
        found[key] = values[key]
    version = values.get("version", "")
    if not isinstance(version, str):
        raise ProtocolError(f"version is {brief(version)!r}, not a string")
    result = Negotiated(negotiated=True, version=printable(version[:_MAX_TEXT]), **found)
    requested = {
        "tls_v1": options.tls is not None,
        "snappy": options.compression == "snappy",
        "deflate": options.compression == "deflate",
    }
    for feature, wanted in requested.items():
        if getattr(result, feature) and not wanted:
            raise ProtocolError(f"nsqd enabled {feature} without a request")
    return result


def not_granted(options: ConnectionOptions, negotiated: Negotiated) -> list[str]:
    """Return a log line for each requested setting, except TLS and buffers, that nsqd did not grant (NEG-4)."""
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


def load_object(body: bytes) -> dict[str, Any]:
    """Parse the JSON object in *body*.  Raises ProtocolError for anything else."""
    try:
        values = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProtocolError(f"the reply is neither OK nor JSON: {_shown(body)}") from None
    if not isinstance(values, dict):
        raise ProtocolError(f"the reply is not a JSON object: {_shown(body)}")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shown(body: bytes) -> str:
    return repr(body[:100]) + ("..." if len(body) > 100 else "")


def _number(key: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProtocolError(f"{key} is {brief(value)!r}, not a whole number")
    if not low <= value <= high:
        raise ProtocolError(f"{key} is {brief(value)!r}, outside {low}..{high}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthReply:
    """nsqd's response to AUTH (SEC-4)."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


def parse_auth_reply(body: bytes) -> AuthReply:
    """Parse nsqd's response to AUTH.  Raises ProtocolError if it is no JSON object.  Wrong values become defaults."""
    values = load_object(body)
    count = values.get("permission_count", 0)
    return AuthReply(
        identity=_text(values.get("identity", "")),
        identity_url=_text(values.get("identity_url")),
        permission_count=count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0,
    )


def _text(value: object) -> str:
    return printable(value[:256]) if isinstance(value, str) else ""
