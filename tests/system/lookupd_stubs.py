"""Fake nsqlookupds, and a recorder of the endpoints and lookups that discovery reports."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import gevent

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.dialect import Dialect, Endpoint, Lookup
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.options import LookupOptions

A, B, C = Endpoint("10.0.0.1", 4150), Endpoint("10.0.0.2", 4150), Endpoint("10.0.0.3", 4150)


def producers(*endpoints: Endpoint) -> dict[str, Any]:
    listed = [{"broadcast_address": e.host, "tcp_port": e.port, "http_port": 4151} for e in endpoints]
    return {"channels": [], "producers": listed}


class Cluster:
    """Fake nsqlookupds: ``cluster.says["one"]`` is a reply such as ``producers(A)``, an exception, or a function."""

    def __init__(self, *addresses: str) -> None:
        self.says: dict[str, Any] = dict.fromkeys(addresses, producers())
        self.asked: list[tuple[str, str]] = []

    def fetch(self, address: str, path: str) -> Any:
        self.asked.append((address, path))
        said = self.says[address]
        said = said() if callable(said) else said
        if isinstance(said, Exception):
            raise said
        return said


class Found:
    """Records the endpoints and lookups that discovery reports."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.forgotten: list[Endpoint] = []
        self.lookups: list[tuple[str, Lookup]] = []

    def discovery(self, addresses: Any, *, topic: str = "t", **options: Any) -> Discovery:
        known = {name: options.pop(name) for name in list(options) if name.startswith("lookupd_")}
        settings: Any = SimpleNamespace(
            lookupds=addresses,
            lookup=LookupOptions(**known),
            dialect=options.pop("dialect", Dialect()),
            endpoints=options.pop("direct", ()),
            allowed_addresses=options.pop("allowed", None),
            address_map=options.pop("address_map", None),
        )
        called: dict[str, Any] = {
            "on_found": self.endpoints.extend,
            "on_forget": self.forgotten.extend,
            "on_lookup": lambda address, lookup: self.lookups.append((address, lookup)),
            **options,
        }
        rng, clock = called.pop("rng", random.Random(1)), called.pop("clock", SYSTEM_CLOCK)
        return Discovery(settings, topic, called.pop("role", "read"), rng, clock, **called)

    def take(self) -> list[Endpoint]:
        found, self.endpoints[:] = list(self.endpoints), []
        return found


def poll(discovery: Discovery) -> None:
    """Query each nsqlookupd once, and wait for the replies."""
    discovery.poll()
    gevent.sleep(0)
    gevent.sleep(0)


def listed(*addresses: str) -> dict[str, Any]:
    nodes = []
    for address in addresses:
        host, _, port = address.partition(":")
        nodes.append({"ID": address, "NodeIP": host, "TcpPort": "1", "HttpPort": port, "RpcPort": "2", "Epoch": 0})
    return {"lookupdleader": nodes[0], "lookupdnodes": nodes}
