"""A snapshot of a connection's state; made in its loop."""

from __future__ import annotations

from gnsq_lite.net.blocking_connection import BlockingConnection
from gnsq_lite.net.connection import Connection
from gnsq_lite.stats import ConnectionStats


def connection_stats(connection: Connection | BlockingConnection, now: float, **counts: int) -> ConnectionStats:
    """Return the state of one connection; *counts* are those of its messages, by the names of ConnectionStats."""
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
