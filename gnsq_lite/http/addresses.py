"""Where the nsqds of a topic answer HTTP, for whoever knows the addresses of their protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from gnsq_lite.errors import NSQError
from gnsq_lite.http.lookupd import LookupdClient
from gnsq_lite.options import format_address

log = logging.getLogger("gnsq_lite.http")

#: nsqd's usual ports: where no nsqlookupd tells the one of HTTP, it is the second.
_USUAL = (":4150", ":4151")


def http_addresses(topic: str, lookupds: Iterable[str], **settings: Any) -> dict[str, str]:
    """Return the HTTP address of each nsqd that an nsqlookupd names for *topic*, by its other one.

    *settings* are :class:`LookupdClient`'s; one that does not answer is passed over.
    """
    found: dict[str, str] = {}
    for address in lookupds:
        try:
            with LookupdClient(address, **settings) as client:
                nodes = client.lookup(topic).producers
        except NSQError as error:
            log.debug("no nsqds of %s through %s: %s", topic, address, error)
            continue
        found |= {format_address(node.tcp_address): format_address(node.http_address) for node in nodes}
    return found


def http_address(nsqd: str, known: Mapping[str, str]) -> str | None:
    """Return where *nsqd* answers HTTP, if it is *known* or has its usual port; None: it cannot be told."""
    address = known.get(nsqd)
    if address is None and nsqd.endswith(_USUAL[0]):
        address = nsqd.removesuffix(_USUAL[0]) + _USUAL[1]
    return address
