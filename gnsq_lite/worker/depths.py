"""The depths of a Worker's channels at the nsqds to which the Worker is connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gnsq_lite.net.depths import Depths, Place
from gnsq_lite.stats import ReaderStats
from gnsq_lite.worker.app import Worker


def depths_of(worker: Worker, **settings: Any) -> Callable[[Sequence[ReaderStats]], dict[Place, int]]:
    """Return a function that returns the known depths of channels, and polls them in the background.

    *settings* are arguments of :class:`~gnsq_lite.net.depths.Depths`.
    """

    def options(topic: str) -> dict[str, Any]:
        return next(each for each in worker.handlers if each.topic == topic).merged(worker.defaults)

    depths = Depths(options, **settings)

    def look(stats: Sequence[ReaderStats]) -> dict[Place, int]:
        wanted = {(each.topic, each.channel): [c.address for c in each.connections] for each in stats}
        found = depths.look({channel: nsqds for channel, nsqds in wanted.items() if nsqds})
        return {place: depth for place, depth in found.items() if depth is not None}

    return look
