"""Which endpoints get nothing that another one could take (PUB-4): pure.

An nsqd that cannot be reached, or that is silent, is avoided with all partitions that it leads, so that only the first
publish to it waits.  After an error that concerns one partition, only that partition is avoided there.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from gnsq_lite.options import Address


class Addressed(Hashable, Protocol):
    """A node, or a partition on one."""

    @property
    def address(self) -> Address:
        """Return the address of the node."""


class Shunned:
    """Endpoints to avoid, unless a key or a partition allows no other."""

    def __init__(self) -> None:
        self._endpoints: set[Addressed] = set()
        self._nodes: set[Address] = set()

    def add(self, endpoint: Addressed, *, whole_node: bool) -> None:
        """Avoid an endpoint; with *whole_node* also every other endpoint at its address."""
        self._endpoints.add(endpoint)
        if whole_node:
            self._nodes.add(endpoint.address)

    def discard(self, endpoint: Addressed) -> None:
        """Use an endpoint that answers again, and others at its address that were not added themselves."""
        self._endpoints.discard(endpoint)
        self._nodes.discard(endpoint.address)

    def has(self, endpoint: Addressed) -> bool:
        """Return whether an endpoint is to be avoided."""
        return endpoint in self._endpoints or endpoint.address in self._nodes
