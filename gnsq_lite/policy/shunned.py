"""Remembers endpoints to avoid while another endpoint is available (PUB-4).  Pure.

The Writer avoids an unreachable or silent nsqd with all partitions that it leads, so that only the first publish to the
nsqd waits.  After an error of one partition, the Writer avoids only this partition on the nsqd.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from gnsq_lite.options import Address


class Addressed(Hashable, Protocol):
    """A node, or a partition on a node."""

    @property
    def address(self) -> Address:
        """Return the address of the node."""


class Shunned:
    """Endpoints to avoid, unless the publish's key or partition allows no other endpoint."""

    def __init__(self) -> None:
        self._endpoints: set[Addressed] = set()
        self._nodes: set[Address] = set()

    def add(self, endpoint: Addressed, *, whole_node: bool) -> None:
        """Avoid an endpoint; with *whole_node* avoid all endpoints at its address."""
        self._endpoints.add(endpoint)
        if whole_node:
            self._nodes.add(endpoint.address)

    def discard(self, endpoint: Addressed) -> None:
        """Use an endpoint that responds again, and endpoints at its address that were not added themselves."""
        self._endpoints.discard(endpoint)
        self._nodes.discard(endpoint.address)

    def has(self, endpoint: Addressed) -> bool:
        """Return whether to avoid an endpoint."""
        return endpoint in self._endpoints or endpoint.address in self._nodes
