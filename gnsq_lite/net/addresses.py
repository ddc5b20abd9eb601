"""Where an announced nsqd is in truth: names that resolve only inside a container, port forwards."""

from __future__ import annotations

from typing import Any

from gnsq_lite.dialect import Endpoint
from gnsq_lite.options import Address, parse_address


def mapped(address_map: Any, endpoint: Endpoint) -> Address | None:
    """Return where to connect to for *endpoint*; None: where it says.

    *address_map* is a function of (host, port), or a dict of "host:port" or "host" to "host:port" or "host".
    """
    if address_map is None:
        return None
    if callable(address_map):
        found = address_map(endpoint.host, endpoint.port)
    else:
        found = address_map.get(f"{endpoint.host}:{endpoint.port}") or address_map.get(endpoint.host)
    if found is None:
        return None
    return parse_address(found, default_port=endpoint.port, option="address_map")


def without_credentials(address: str) -> str:
    """Return nsqlookupd's *address*, ``host:port`` or a URL, without ``user:password@``: as it may be shown."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
