"""What ``Reader.stats()`` and ``Writer.stats()`` return: frozen snapshots without secrets.

Each measured value is declared once, here: its text, its Prometheus metric, and how the live page combines the values
of several processes.  :mod:`gnsq_lite.contrib.prometheus`, ``/api/status`` and the documentation follow from these
declarations.  A new value needs a field here and a line in ``consume/snapshot.py``, or in ``stats()`` of
``publish/core.py`` and ``publish/pool.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gnsq_lite.dialect import Endpoint
    from gnsq_lite.wire.handshake import AuthReply
    from gnsq_lite.wire.identify import Negotiated


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of one nsqlookupd."""

    #: None before its first answer or failure.
    ok: bool | None
    #: Why it fails; None while it does not.
    error: str | None
    #: Seconds since 1970 when it came into this state; None before the first answer.
    since: float | None
    #: Failures since the last good answer.
    failures_in_a_row: int
    #: The nodes of its last good answer.
    last_nodes: tuple[Endpoint, ...]


#: How the live page combines the values of several processes; "": it does not show the value.
Combined = Literal["", "sum", "highest", "any"]


def measured(text: str, metric: str = "", *, label: str = "", combined: Combined = "", default: Any = 0) -> Any:
    """Declare a measured value.

    Args:
        metric: The Prometheus metric; a counter if it ends in ``_total``.  A tuple is shown as its length.
        label: One more label of the metric: "outcome" is the name of the field, "nsqd" the connection's address.
    """
    start: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**start, metadata={"text": text, "metric": metric, "label": label, "combined": combined})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStats:
    """One connection.  A Writer's connections have no messages."""

    address: str = measured("``host:port`` of the nsqd", default="")
    partition: int | None = measured("Partition (Youzan's NSQ), or None", default=None)
    open_for: float = measured("Seconds since the connection was made", default=0.0)
    ready: int = measured("RDY that was last sent to the nsqd", "gnsq_ready", label="nsqd")
    share: int = measured(
        "Messages that the connection may have in flight: its share of max_in_flight", "gnsq_share", label="nsqd"
    )
    in_flight: int = measured("Messages received and not answered", "gnsq_in_flight", label="nsqd")
    received: int = measured("Messages received, redeliveries included")
    finished: int = measured("Messages finished (FIN)")
    requeued: int = measured("Messages requeued (REQ)")
    expired: int = measured("Messages that nsqd took back after msg_timeout")
    answers_lost: int = measured("FINs and REQs that could not be sent because the connection was lost")
    bytes_in: int = measured("Bytes received")
    bytes_out: int = measured("Bytes sent")
    last_read_ago: float = measured("Seconds since the last byte was received", default=0.0)
    negotiated: Negotiated | None = measured(
        "What nsqd granted: version, TLS, compression, msg_timeout and so on; None before the handshake", default=None
    )
    auth: AuthReply | None = measured(
        "Reply to AUTH: identity, identity_url, permission_count; None if nsqd required no AUTH", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """A Reader.  Counts are since start()."""

    topic: str = measured("Topic", default="")
    channel: str = measured("Channel", default="")
    state: str = measured('"connecting", "connected", "backoff", "paused", "closing" or "closed"', default="")
    connections: tuple[ConnectionStats, ...] = measured(
        "Connections to nsqds", "gnsq_connections", combined="sum", default=()
    )
    max_in_flight: int = measured("Configured max_in_flight", "gnsq_max_in_flight", combined="sum")
    in_flight: int = measured("Messages received and not answered, over all connections", combined="sum")
    ready: int = measured("RDY that was last sent, over all connections", combined="sum")
    share: int = measured("Messages that all connections together may have in flight", combined="sum")
    received: int = measured("Messages received, redeliveries included", "gnsq_messages_received_total", combined="sum")
    finished: int = measured("Messages finished (FIN)", "gnsq_messages_total", label="outcome", combined="sum")
    requeued: int = measured("Messages requeued (REQ)", "gnsq_messages_total", label="outcome", combined="sum")
    failures: int = measured("Messages whose handler raised", "gnsq_handler_failures_total", combined="sum")
    given_up: int = measured(
        "Messages given up after max_attempts; counted as finished too", "gnsq_messages_given_up_total", combined="sum"
    )
    late_answers: int = measured(
        "FINs and REQs that nsqd refused because the message had timed out", "gnsq_late_answers_total"
    )
    answers_lost: int = measured("FINs and REQs that could not be sent because the connection was lost")
    expired: int = measured(
        "Messages that nsqd took back after msg_timeout", "gnsq_messages_total", label="outcome", combined="sum"
    )
    dropped: int = measured(
        "Messages that waited for a handler when their connection was lost; nsqd sends them again",
        "gnsq_messages_total",
        label="outcome",
    )
    reconnects: int = measured("Connections made again after a loss", "gnsq_reconnects_total")
    queued: int = measured("Messages that wait for a handler", "gnsq_queued", combined="sum")
    handlers_running: int = measured("Handlers that run", "gnsq_handlers_running", combined="sum")
    handlers_overdue: int = measured("Handlers past time_limit; their slots were refilled", "gnsq_handlers_overdue")
    handlers_abandoned: int = measured("Handlers that still ran when the timeout of close() had passed")
    oldest_handler: float = measured(
        "Seconds for which the longest-running handler has run, to about a second; 0.0: none runs",
        "gnsq_oldest_handler_seconds",
        default=0.0,
    )
    backoff_level: int = measured("Level of backoff; 0: none", "gnsq_backoff_level", combined="highest")
    backoff_for: float = measured(
        "Seconds until backoff lets a message through", "gnsq_backoff_seconds", combined="highest", default=0.0
    )
    starved: bool = measured(
        "Whether a connection has nearly as many messages in flight as it may",
        "gnsq_starved",
        combined="any",
        default=False,
    )
    lookupds: Mapping[str, Health] = measured("Health of each nsqlookupd by its address", default=dict)
    unavailable: Mapping[str, str] = measured(
        "Why each wanted nsqd is not connected, by ``host:port`` and partition", default=dict
    )
    stopped: tuple[int | str, ...] = measured(
        "Ordered partitions that stopped after max_attempts, for ``resume_partition``; the nsqd if it has none",
        default=(),
    )
    error: str | None = measured(
        "Error that ended the Reader, which ``join()`` raises; None: it runs, or close() ended it", default=None
    )

    @property
    def is_ready(self) -> bool:
        """Whether some connection may receive messages."""
        return any(c.share > 0 for c in self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """A Writer.  Counts are of publishes, since the Writer was made."""

    state: str = measured('"idle" (nothing was published yet), "connecting", "connected" or "closed"', default="")
    connections: tuple[ConnectionStats, ...] = measured("Connections to nsqds", "gnsq_writer_connections", default=())
    pending: int = measured("Publishes without an outcome yet", "gnsq_publishes_pending")
    published: int = measured("Publishes that nsqd answered with OK", "gnsq_publishes_total", label="outcome")
    failed: int = measured("Publishes that failed", "gnsq_publishes_total", label="outcome")
    unknown: int = measured("Publishes of unknown outcome", "gnsq_publishes_total", label="outcome")
    reconnects: int = measured("Connections made again after a loss", "gnsq_writer_reconnects_total")
    max_connections: int = measured("Most connections of publishing threads to one nsqd")


#: Help of the metrics that several values share, told apart by the label ``outcome``.
_BY_OUTCOME = {"gnsq_messages_total": "Messages by outcome", "gnsq_publishes_total": "Publishes by outcome"}


def families(*kinds: type[ReaderStats | WriterStats | ConnectionStats]) -> dict[str, tuple[str, list[str]]]:
    """Return (help, further labels) of each metric of these classes, by its name."""
    found = {}
    for data in (spec.metadata for kind in kinds for spec in fields(kind)):
        if data["metric"]:
            labels = [data["label"]] if data["label"] else []
            found[data["metric"]] = (_BY_OUTCOME.get(data["metric"], data["text"]), labels)
    return found


def metrics(stats: ReaderStats | WriterStats | ConnectionStats) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield (metric, values of its further labels, number) for each value that has a metric."""
    for spec in fields(stats):
        metric, label = spec.metadata["metric"], spec.metadata["label"]
        if metric:
            value = getattr(stats, spec.name)
            further = {"": (), "outcome": (spec.name,), "nsqd": (getattr(stats, "address", ""),)}[label]
            yield metric, further, float(len(value) if isinstance(value, tuple) else value)


#: The values of a Reader on the live page, and how those of several processes are combined.
COMBINED: dict[str, Combined] = {
    spec.name: spec.metadata["combined"] for spec in fields(ReaderStats) if spec.metadata["combined"]
}
