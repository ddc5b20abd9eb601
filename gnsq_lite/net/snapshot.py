"""Snapshots of a core's state; made in its loop."""

from __future__ import annotations

from gnsq_lite.net.connection import Connection
from gnsq_lite.net.producer import Producer
from gnsq_lite.stats import ConnectionStats, WriterStats

_NO_MESSAGES = dict.fromkeys(("ready", "in_flight", "received", "finished", "requeued", "expired", "answers_lost"), 0)


def connection_stats(connection: Connection, now: float, counts: dict[str, int]) -> ConnectionStats:
    """Return the state of one connection; *counts* are of its messages."""
    received, sent = connection.traffic()
    return ConnectionStats(
        address=connection.address,
        partition=connection.endpoint.partition,
        open_for=0.0 if connection.opened_at is None else now - connection.opened_at,
        **counts,
        bytes_in=received,
        bytes_out=sent,
        last_read_ago=now - connection.read_at,
        negotiated=connection.negotiated,
        auth=connection.auth_reply,
    )


def writer_stats(core: Producer) -> WriterStats:
    """Return the state of a Writer."""
    now = core.clock.now()
    connections = [peer.connection for peer in core.rotation.connected() if peer.connection is not None]
    return WriterStats(
        state="closed" if core.ended else "connected" if connections else "connecting",
        connections=tuple(connection_stats(c, now, _NO_MESSAGES) for c in connections),
        pending=core.unsettled(),
        published=core.published,
        failed=core.failed,
        unknown=core.unknown,
        reconnects=core.reconnects,
    )
