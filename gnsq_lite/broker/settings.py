"""What /config shows: nsqd's settings by its names for them, with durations in nanoseconds as Go's JSON has them."""

from __future__ import annotations

import dataclasses
from typing import Any

from gnsq_lite.broker.options import BrokerOptions

#: Options that are no flags of nsqd.
_NO_FLAGS = {
    "client_timeout",
    "queue_scan_interval",
    "inactive_producer_timeout",
    "tombstone_lifetime",
    "failover_time",
    "max_connections",
    "max_memory",
}
#: Options under another name.
_NAMES = {"lookupd_tcp_addresses": "nsqlookupd_tcp_addresses", "node_id": "id"}
#: Flags that a broker in memory has no use for, with nsqd's defaults.
_UNUSED: dict[str, Any] = {
    "log_prefix": "[nsqd] ",
    "data_path": "",
    "max_bytes_per_file": 100 * 1024 * 1024,
    "sync_every": 2500,
    "sync_timeout": 2 * 10**9,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "statsd_address": "",
    "statsd_interval": 60 * 10**9,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_window_time": 600 * 10**9,
    "e2e_processing_latency_percentiles": [],
}
_TLS_REQUIRED = {False: 0, "tcp-https": 1, True: 2}
_TLS_VERSIONS = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}


def settings_of(options: BrokerOptions, host: str, ports: tuple[int, int, int]) -> dict[str, Any]:
    """Return the settings of an nsqd that is told to listen on *ports*: TCP, HTTP, HTTPS."""
    settings = dict(_UNUSED, log_level=2)
    for name, port in zip(("tcp_address", "http_address", "https_address"), ports, strict=True):
        settings[name] = f"{host}:{port}"
    for spec in dataclasses.fields(options):
        if spec.name in _NO_FLAGS:
            continue
        value = getattr(options, spec.name)
        if isinstance(spec.default, float):
            value = round(value * 1e9)
        settings[_NAMES.get(spec.name, spec.name)] = list(value) if isinstance(value, tuple) else value
    settings["tls_required"] = _TLS_REQUIRED[options.tls_required]
    settings["tls_min_version"] = _TLS_VERSIONS[options.tls_min_version]
    return settings
