"""A snapshot of a Writer's state; made in its loop."""

from __future__ import annotations

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.publish.core import WriterCore
from gnsq_lite.publish.pool import Pool
from gnsq_lite.stats import WriterStats


def loop_stats(core: WriterCore) -> WriterStats:
    """Return the state of the loop's part of a Writer."""
    now = core.clock.now()
    connections = [each.connection for each in core.rotation.connected if each.connection is not None]
    return WriterStats(
        connections=tuple(connection_stats(c, now) for c in connections),
        pending=len(core.unsettled()),
        published=core.outcomes.published,
        failed=core.outcomes.failed,
        unknown=core.outcomes.unknown,
        reconnects=core.reconnects,
    )


def with_pool(stats: WriterStats | None, pool: Pool, state: str | None) -> WriterStats:
    """Return the state of a Writer, given that of the loop's part, if any; *state*: it is idle or closed."""
    now = SYSTEM_CLOCK.now()
    loop = stats or WriterStats()
    own = tuple(connection_stats(each, now) for each in pool.connections())
    connections = loop.connections + own
    return WriterStats(
        state=state or ("connected" if connections else "connecting"),
        connections=connections,
        pending=loop.pending + pool.pending(),
        published=loop.published + pool.published(),
        failed=loop.failed + pool.failed,
        unknown=loop.unknown + pool.unknown,
        reconnects=loop.reconnects + pool.reconnects,
        max_connections=pool.max_connections,
    )
