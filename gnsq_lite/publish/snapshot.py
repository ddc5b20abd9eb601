"""A snapshot of a Writer's state; made in its loop."""

from __future__ import annotations

from gnsq_lite.net.snapshot import connection_stats
from gnsq_lite.publish.producer import Producer
from gnsq_lite.stats import WriterStats

_NO_MESSAGES = dict.fromkeys(("ready", "in_flight", "received", "finished", "requeued", "expired", "answers_lost"), 0)


def writer_stats(core: Producer) -> WriterStats:
    """Return the state of a Writer."""
    now = core.clock.now()
    connections = [each.connection for each in core.rotation.connected if each.connection is not None]
    return WriterStats(
        state="closed" if core.ended else "connected" if connections else "connecting",
        connections=tuple(connection_stats(c, now, _NO_MESSAGES) for c in connections),
        pending=core.outcomes.unsettled(),
        published=core.outcomes.published,
        failed=core.outcomes.failed,
        unknown=core.outcomes.unknown,
        reconnects=core.reconnects,
    )
