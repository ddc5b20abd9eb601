"""Settings of the embedded broker, named after nsqd's and nsqlookupd's flags.

Durations are seconds (floats), sizes are bytes.  A value out of range raises
:class:`~gnsq_lite.errors.OptionError` at construction, before anything listens.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from gnsq_lite.errors import OptionError

#: The nsqd whose behaviour the broker has, and which it names as its version.
NSQD_VERSION = "1.3.0"

_TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


def _range(default: Any, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """What one nsqd of the broker allows.  Each name is nsqd's flag with underscores; the defaults are nsqd's.

    ``max_connections`` and ``max_memory`` are the broker's own: limits that keep a test run from taking the machine.
    ``max_memory`` counts bodies that are queued, in flight or deferred, once for each channel that holds them.
    """

    msg_timeout: float = _range(60.0, 0.001, 86400.0)
    max_msg_timeout: float = _range(900.0, 0.001, 86400.0 * 30)
    max_msg_size: int = _range(1024 * 1024, 1, 2**31 - 64)
    max_body_size: int = _range(5 * 1024 * 1024, 1, 2**31 - 64)
    max_req_timeout: float = _range(3600.0, 0.0, 86400.0 * 365)
    client_timeout: float = _range(60.0, 0.1, 86400.0)
    mem_queue_size: int = _range(10000, 0, 2**31)
    max_heartbeat_interval: float = _range(60.0, 1.0, 86400.0)
    max_rdy_count: int = _range(2500, 1, 2**31)
    max_output_buffer_size: int = _range(64 * 1024, 64, 2**31)
    max_output_buffer_timeout: float = _range(30.0, 0.001, 3600.0)
    min_output_buffer_timeout: float = _range(0.025, 0.001, 3600.0)
    output_buffer_timeout: float = _range(0.25, 0.001, 3600.0)
    max_channel_consumers: int = _range(0, 0, 2**31)
    queue_scan_interval: float = _range(0.02, 0.001, 60.0)

    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""
    tls_client_auth_policy: Literal["", "require", "require-verify"] = ""
    tls_required: bool | Literal["tcp-https"] = False
    tls_min_version: str = "tls1.2"

    deflate: bool = True
    max_deflate_level: int = _range(6, 1, 9)
    snappy: bool = True

    auth_http_addresses: tuple[str, ...] = ()
    http_client_connect_timeout: float = _range(2.0, 0.01, 600.0)
    http_client_request_timeout: float = _range(5.0, 0.01, 600.0)

    broadcast_address: str = "127.0.0.1"
    node_id: int = _range(0, 0, 1023)
    lookupd_tcp_addresses: tuple[str, ...] = ()

    inactive_producer_timeout: float = _range(300.0, 0.01, 86400.0)
    tombstone_lifetime: float = _range(45.0, 0.0, 86400.0)

    max_connections: int = _range(10_000, 1, 1_000_000)
    max_memory: int = _range(512 * 1024 * 1024, 0, 2**50)

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            if "low" in spec.metadata:
                _check_range(spec, getattr(self, spec.name))
        for name in ("auth_http_addresses", "lookupd_tcp_addresses"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(item, str) for item in value):
                raise OptionError(name, value, "must be a sequence of strings")
            object.__setattr__(self, name, tuple(value))
        self._check_tls()

    def _check_tls(self) -> None:
        if self.tls_client_auth_policy not in ("", "require", "require-verify"):
            raise OptionError("tls_client_auth_policy", self.tls_client_auth_policy, "must be require[-verify] or ''")
        if self.tls_required not in (False, True, "tcp-https"):
            raise OptionError("tls_required", self.tls_required, "must be False, True or 'tcp-https'")
        if self.tls_min_version not in _TLS_VERSIONS:
            raise OptionError("tls_min_version", self.tls_min_version, f"must be one of {', '.join(_TLS_VERSIONS)}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise OptionError("tls_cert", self.tls_cert, "needs tls_key, and the other way round")
        if self.tls_client_auth_policy and not self.tls_required:
            object.__setattr__(self, "tls_required", True)  # nsqd/nsqd.go:122 @v1.3.0
        if self.tls_required and not self.tls_cert:
            raise OptionError("tls_required", self.tls_required, "needs tls_cert and tls_key")
        for name in ("tls_cert", "tls_key", "tls_root_ca_file"):
            path = getattr(self, name)
            if path and not os.path.isfile(path):
                raise OptionError(name, path, "is no file")


def _check_range(spec: dataclasses.Field[Any], value: object) -> None:
    low, high = spec.metadata["low"], spec.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise OptionError(spec.name, value, "must be a number")
    if isinstance(spec.default, int) and not isinstance(value, int):
        raise OptionError(spec.name, value, "must be a whole number")
    if not low <= value <= high:
        raise OptionError(spec.name, value, f"must be between {low} and {high}")
