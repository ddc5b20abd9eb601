"""Checks IDENTIFY and negotiates features (nsqd/client_v2.go, protocol_v2.go @v1.3.0)."""

from __future__ import annotations

from typing import Any

from gnsq_lite.broker.commands import CommandError
from gnsq_lite.broker.options import NSQD_VERSION, BrokerOptions

#: Fields of the struct into which nsqd unmarshals IDENTIFY's body.
FIELDS = {
    "client_id": "str",
    "hostname": "str",
    "heartbeat_interval": "int",
    "output_buffer_size": "int",
    "output_buffer_timeout": "int",
    "feature_negotiation": "bool",
    "tls_v1": "bool",
    "deflate": "bool",
    "deflate_level": "int",
    "snappy": "bool",
    "sample_rate": "int32",
    "user_agent": "str",
    "msg_timeout": "int",
}

#: Values of the features in an IDENTIFY that requests no feature.
NO_FEATURES: dict[str, Any] = {"tls_v1": False, "deflate": False, "snappy": False, "sample_rate": 0}

_DEFAULT_BUFFER = 16 * 1024


class Profile:
    """Settings of a client, in seconds and bytes.  Before IDENTIFY, the settings are the broker's defaults."""

    def __init__(self, options: BrokerOptions, host: str) -> None:
        self._options = options
        self.client_id = self.hostname = host
        self.user_agent = ""
        self.heartbeat_interval = options.client_timeout / 2
        self.output_buffer_size = _DEFAULT_BUFFER
        self.output_buffer_timeout = options.output_buffer_timeout
        self.sample_rate = 0
        self.msg_timeout = options.msg_timeout

    def apply(self, data: dict[str, Any]) -> None:
        """Apply the values of an IDENTIFY.  Raises CommandError for the first value out of range."""
        self.client_id, self.hostname = data["client_id"], data["hostname"]
        self.user_agent = data["user_agent"]
        options = self._options
        interval = data["heartbeat_interval"]
        if interval == -1:
            self.heartbeat_interval = 0.0
        elif interval:
            self.heartbeat_interval = _seconds("heartbeat interval", interval, 1.0, options.max_heartbeat_interval)
        self._set_buffer(data["output_buffer_size"], data["output_buffer_timeout"])
        if not 0 <= data["sample_rate"] <= 99:
            raise _invalid("sample rate", data["sample_rate"])
        self.sample_rate = data["sample_rate"]
        if data["msg_timeout"]:
            self.msg_timeout = _seconds("msg timeout", data["msg_timeout"], 1.0, options.max_msg_timeout)

    def _set_buffer(self, size: int, timeout_ms: int) -> None:
        options = self._options
        if timeout_ms == -1:
            self.output_buffer_timeout = 0.0
        elif timeout_ms:
            low, high = options.min_output_buffer_timeout, options.max_output_buffer_timeout
            self.output_buffer_timeout = _seconds("output buffer timeout", timeout_ms, low, high)
        if size == -1:
            self.output_buffer_size, self.output_buffer_timeout = 1, 0.0
        elif 64 <= size <= options.max_output_buffer_size:
            self.output_buffer_size = size
        elif size:
            raise _invalid("output buffer size", size)

    def negotiate(self, data: dict[str, Any], *, has_tls: bool, auth_required: bool) -> dict[str, Any]:
        """Return nsqd's reply to IDENTIFY.  Raises CommandError if the client requests both compressions."""
        options = self._options
        deflate = options.deflate and data["deflate"]
        snappy = options.snappy and data["snappy"]
        level = data["deflate_level"] if deflate and data["deflate_level"] > 0 else 6
        if deflate and snappy:
            raise CommandError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
        return {
            "max_rdy_count": options.max_rdy_count,
            "version": NSQD_VERSION,
            "max_msg_timeout": int(options.max_msg_timeout * 1000),
            "msg_timeout": int(self.msg_timeout * 1000),
            "tls_v1": has_tls and data["tls_v1"],
            "deflate": deflate,
            "deflate_level": min(level, options.max_deflate_level),
            "max_deflate_level": options.max_deflate_level,
            "snappy": snappy,
            "sample_rate": self.sample_rate,
            "auth_required": auth_required,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": round(self.output_buffer_timeout * 1000),
        }


def _invalid(what: str, value: int) -> CommandError:
    return CommandError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _seconds(what: str, value_ms: int, low: float, high: float) -> float:
    if not round(low * 1000) <= value_ms <= round(high * 1000):
        raise _invalid(what, value_ms)
    return value_ms / 1000
