"""Publishes of one turn of the loop to one topic, joined into one MPUB; each keeps its own outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsq_lite.net.publication import Publication
from gnsq_lite.wire import commands


class Batch(Publication):
    """An MPUB made of publishes."""

    __slots__ = ("members",)

    members: list[Publication]

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Settle each member."""
        first = super().settle(value, error)
        if first:
            for member in self.members:
                member.settle(value, error)
        return first


def joined(publications: list[Publication], most: int) -> Iterable[Publication]:
    """Yield *publications* as MPUBs of at most *most* bytes; what stands alone stays as it is."""
    group: list[Publication] = []
    size = 4
    for publication in publications:
        body = publication.request.bodies[0] if publication.request is not None else b""
        if group and size + 4 + len(body) > most:
            yield _as_batch(group)
            group, size = [], 4
        group.append(publication)
        size += 4 + len(body)
    if group:
        yield _as_batch(group)


def _as_batch(group: list[Publication]) -> Publication:
    if len(group) == 1:
        return group[0]
    first = group[0]
    bodies = [p.request.bodies[0] for p in group if p.request is not None]
    data = commands.multipublish_head(first.topic) + commands.multipublish_body(bodies)
    batch = Batch(first._loop, first.topic, data, len(group), first.timeout, min(p.deadline for p in group))
    batch.members = group
    batch.retries = min(p.retries for p in group)
    batch.cost = sum(p.cost for p in group)
    return batch
