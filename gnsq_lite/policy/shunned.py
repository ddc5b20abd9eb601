"""Which endpoints get nothing that another one could take (PUB-4): pure.

An nsqd that cannot be reached, or that is silent, is out as a whole: with it go all partitions that it leads, so that
the first to notice is the only one who waits.  An error that speaks of one partition puts out that one alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from gnsq_lite.options import Address


class Addressed(Hashable, Protocol):
    """A node, or a partition on one."""

    @property
    def address(self) -> Address:
        """The node's."""


class Shunned:
    """Endpoints to avoid.  Whoever has to be reached, because of a key for one, is not asked about."""

    def __init__(self) -> None:
        self._endpoints: set[Addressed] = set()
        self._nodes: set[Address] = set()

    def add(self, endpoint: Addressed, *, whole_node: bool) -> None:
        """Avoid it; where *whole_node*, everything else at its address too."""
        self._endpoints.add(endpoint)
        if whole_node:
            self._nodes.add(endpoint.address)

    def discard(self, endpoint: Addressed) -> None:
        """It answers: use it, and what else is at its address, but for what was added by itself."""
        self._endpoints.discard(endpoint)
        self._nodes.discard(endpoint.address)

    def has(self, endpoint: Addressed) -> bool:
        """Whether it is to be avoided."""
        return endpoint in self._endpoints or endpoint.address in self._nodes
