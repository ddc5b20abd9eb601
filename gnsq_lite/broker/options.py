"""Options of the embedded broker, named after the flags of nsqd and nsqlookupd.

Durations are seconds (floats), and sizes are bytes.  The constructor raises :class:`~gnsq_lite.errors.OptionError` for
a value out of range.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gnsq_lite.broker.auth import AuthAnswer, AuthRequest
from gnsq_lite.errors import OptionError

#: The version of nsqd that the broker emulates and reports.
NSQD_VERSION = "1.3.0"

_AUTH_ADDRESS = re.compile(r"(https?://[^/\s]+\S*|[^/\s]+:\d+)?")
_TLS_VERSIONS = ("tls1.0", "tls1.1", "tls1.2", "tls1.3")


def _range(default: Any, low: float, high: float, doc: str) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "doc": doc})


def _plain(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options of a broker, named like nsqd's flags.  The defaults are nsqd's, except for ``queue_scan_interval``.

    ``max_connections`` and ``max_memory`` limit the resources of a test run; nsqd has no such flags.  ``max_memory``
    counts the body and 256 bytes for each unfinished message of each channel, and of each topic's backlog.
    """

    msg_timeout: float = _range(
        60.0, 0.001, 86400.0, "seconds until a message times out, unless the client requests another timeout"
    )
    max_msg_timeout: float = _range(900.0, 0.001, 86400.0 * 30, "most seconds from delivery to timeout, with TOUCH")
    max_msg_size: int = _range(1024 * 1024, 1, 2**31 - 64, "largest message, in bytes")
    max_body_size: int = _range(5 * 1024 * 1024, 1, 2**31 - 64, "largest body of a command, in bytes")
    max_req_timeout: float = _range(3600.0, 0.0, 86400.0 * 365, "longest delay of REQ and DPUB, in seconds")
    client_timeout: float = _range(60.0, 0.1, 86400.0, "twice the default heartbeat interval")
    mem_queue_size: int = _range(10000, 0, 2**31, "most messages queued in an ephemeral topic or channel")
    max_heartbeat_interval: float = _range(60.0, 1.0, 86400.0, "longest heartbeat interval a client may request")
    max_rdy_count: int = _range(2500, 1, 2**31, "highest RDY")
    max_output_buffer_size: int = _range(64 * 1024, 64, 2**31, "largest output buffer a client may request")
    max_output_buffer_timeout: float = _range(30.0, 0.001, 3600.0, "longest time between flushes a client may request")
    min_output_buffer_timeout: float = _range(
        0.025, 0.001, 3600.0, "shortest time between flushes a client may request"
    )
    output_buffer_timeout: float = _range(
        0.25, 0.001, 3600.0, "seconds between flushes, unless the client requests another time"
    )
    max_channel_consumers: int = _range(0, 0, 2**31, "most clients on one channel; 0 sets no limit")
    queue_scan_interval: float = _range(0.02, 0.001, 60.0, "seconds between scans for timed-out messages (0.1 in nsqd)")

    like_nsqd: bool = _plain(
        False,
        "behave as nsqd where the broker is kinder: channels are learned every 5 s, delays are lost when a topic's"
        " backlog exceeds mem_queue_size, nsqds give the same ids, a second IDENTIFY changes only the answer, and"
        " queue_scan_interval is 0.1",
    )

    tls_cert: str = _plain("", "PEM file of the certificate, which enables TLS for clients and the HTTPS port")
    tls_key: str = _plain("", "PEM file of the certificate's key")
    tls_root_ca_file: str = _plain("", "PEM file of the CAs of client certificates")
    tls_client_auth_policy: Literal["", "require", "require-verify"] = _plain(
        "", "whether nsqd requires client certificates"
    )
    tls_required: bool | Literal["tcp-https"] = _plain(
        False, "refuse clients without TLS; 'tcp-https' allows plain HTTP"
    )
    tls_min_version: str = _plain("tls1.2", "lowest version of TLS: tls1.0 to tls1.3")

    deflate: bool = _plain(True, "grant DEFLATE")
    max_deflate_level: int = _range(6, 1, 9, "highest DEFLATE level granted")
    snappy: bool = _plain(True, "grant snappy")

    auth: str | Callable[[AuthRequest], AuthAnswer] = _plain(
        "", "URL of an auth server, or a function; if set, clients must send AUTH"
    )

    broadcast_address: str = _plain("127.0.0.1", "host that nsqlookupd reports to clients")
    node_id: int = _range(0, 0, 1023, "node id of the first nsqd in its message ids; other nsqds use the next numbers")

    inactive_producer_timeout: float = _range(
        300.0, 0.01, 86400.0, "nsqlookupd: seconds without a ping after which an nsqd is no longer listed"
    )
    tombstone_lifetime: float = _range(45.0, 0.0, 86400.0, "nsqlookupd: seconds a tombstone lasts")

    max_connections: int = _range(10_000, 1, 1_000_000, "most concurrent connections; nsqd has no such option")
    max_memory: int = _range(
        512 * 1024 * 1024, 0, 2**50, "most bytes of messages; further publishes fail; nsqd has no such option"
    )

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            if "low" in spec.metadata:
                _check_range(spec, getattr(self, spec.name))
        if not callable(self.auth) and not (isinstance(self.auth, str) and _AUTH_ADDRESS.fullmatch(self.auth)):
            raise OptionError("auth", self.auth, "must be a function, or a URL such as http://127.0.0.1:4181/auth")
        if self.like_nsqd and self.queue_scan_interval == type(self).queue_scan_interval:
            object.__setattr__(self, "queue_scan_interval", 0.1)
        self._check_tls()

    def _check_tls(self) -> None:
        if self.tls_client_auth_policy not in ("", "require", "require-verify"):
            raise OptionError("tls_client_auth_policy", self.tls_client_auth_policy, "must be require[-verify] or ''")
        if self.tls_required not in (False, True, "tcp-https"):
            raise OptionError("tls_required", self.tls_required, "must be False, True or 'tcp-https'")
        if self.tls_min_version not in _TLS_VERSIONS:
            raise OptionError("tls_min_version", self.tls_min_version, f"must be one of {', '.join(_TLS_VERSIONS)}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise OptionError("tls_cert", self.tls_cert, "tls_cert and tls_key must be given together")
        if self.tls_client_auth_policy and not self.tls_required:
            object.__setattr__(self, "tls_required", True)  # nsqd/nsqd.go:122 @v1.3.0
        if self.tls_required and not self.tls_cert:
            raise OptionError("tls_required", self.tls_required, "needs tls_cert and tls_key")
        for name in ("tls_cert", "tls_key", "tls_root_ca_file"):
            path = getattr(self, name)
            if path and not os.path.isfile(path):
                raise OptionError(name, path, "is not a file")


def _check_range(spec: dataclasses.Field[Any], value: object) -> None:
    low, high = spec.metadata["low"], spec.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise OptionError(spec.name, value, "must be a number")
    if isinstance(spec.default, int) and not isinstance(value, int):
        raise OptionError(spec.name, value, "must be a whole number")
    if not low <= value <= high:
        raise OptionError(spec.name, value, f"must be between {low} and {high}")
