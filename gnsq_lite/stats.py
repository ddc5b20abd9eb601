"""What ``Reader.stats()`` and ``Writer.stats()`` return: frozen snapshots, cheap to make, free of secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_lite.dialect import Endpoint
    from gnsq_lite.policy.wanted_nodes import Health
    from gnsq_lite.wire.handshake import AuthReply
    from gnsq_lite.wire.identify import Negotiated


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStats:
    """One connection.  Durations are seconds."""

    address: str
    partition: int | None
    open_for: float
    ready: int
    in_flight: int
    received: int
    finished: int
    requeued: int
    expired: int
    answers_lost: int
    bytes_in: int
    bytes_out: int
    last_read_ago: float
    #: What nsqd granted: version, TLS, compression, sample_rate, msg_timeout ... (NEG-3); None before the handshake.
    negotiated: Negotiated | None
    #: The reply to AUTH: identity, identity_url, permission_count; None where none was needed (SEC-4).
    auth: AuthReply | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """A Reader.  Counts are since start()."""

    topic: str
    channel: str
    state: str
    connections: tuple[ConnectionStats, ...]
    max_in_flight: int
    in_flight: int
    ready: int
    received: int
    finished: int
    requeued: int
    failures: int
    given_up: int
    late_answers: int
    #: Answers that came when their connection was gone.
    answers_lost: int
    expired: int
    reconnects: int
    queued: int
    handlers_running: int
    #: Handlers that still ran when close() could wait no longer.
    handlers_abandoned: int
    backoff_level: int
    backoff_for: float
    starved: bool
    #: Health of each nsqlookupd by its address.
    lookupds: Mapping[str, Health[Endpoint]]
    #: Messages that waited for a handler when their connection was lost; nsqd sends them again.
    dropped: int = 0
    #: Seconds for which the handler that has run longest has run, to about a second; 0.0: none runs.
    oldest_handler: float = 0.0
    #: Handlers that run on beyond their ``time_limit``; others have taken their places.
    handlers_overdue: int = 0
    #: Why each nsqd that was asked and is not connected now is not, by ``host:port``, with the partition where named.
    unavailable: Mapping[str, str] = field(default_factory=dict)
    #: Ordered partitions that stopped after max_attempts, for ``resume_partition``; of an nsqd that names none, it.
    stopped: tuple[int | str, ...] = ()
    #: What ended it, where not ``close()``; ``join()`` raises it.
    error: str | None = None

    @property
    def is_ready(self) -> bool:
        """Connected, and some connection may send messages."""
        return any(c.ready > 0 for c in self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """A Writer.  Counts are of publishes, since it was made."""

    state: str
    connections: tuple[ConnectionStats, ...]
    pending: int
    published: int
    failed: int
    unknown: int
    reconnects: int
    #: Most connections of publishing threads to one nsqd.
    max_connections: int = 0
