"""Frozen results of ``Reader.stats()`` and ``Writer.stats()``, which contain no secrets.

This module declares each measured value once, with its text, its Prometheus metric, and how a supervisor's live page
combines the values of several processes.  :mod:`gnsq_lite.contrib.prometheus`, ``/api/status`` and the documentation
use these declarations.  A new value needs a field here and a line in ``consume/snapshot.py``, or in ``stats()`` of
``publish/core.py`` and ``publish/pool.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gnsq_lite.dialect import Endpoint
    from gnsq_lite.wire.identify import AuthReply, Negotiated


#: Seconds after which a running handler call counts as hung.
HUNG = 30.0


@dataclass(frozen=True, slots=True)
class Health:
    """State of one nsqlookupd."""

    #: Whether the last poll succeeded; None before the first reply or failure.
    ok: bool | None
    #: Error of the last poll; None if it succeeded, and before the first reply or failure.
    error: str | None
    #: Time of the last change of ``ok``, in seconds since 1970; None before the first reply or failure.
    since: float | None
    #: Failures since the last successful poll.
    failures_in_a_row: int
    #: Nodes of the last successful poll, without those that the program gave by address.
    last_nodes: tuple[Endpoint, ...]


#: Way in which the live page combines the values of several processes, or "" if the page does not show the value.
Combined = Literal["", "sum", "highest", "any"]


def measured(text: str, metric: str = "", *, label: str = "", combined: Combined = "", default: Any = 0) -> Any:
    """Declare a measured value.

    Args:
        metric: Name of the Prometheus metric.  ``_total`` marks a counter.  The metric of a tuple is its length.
        label: Further label of the metric, or "".  The value of "outcome" is the name of the field, and the value of
            "nsqd" is the address.
    """
    start: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**start, metadata={"text": text, "metric": metric, "label": label, "combined": combined})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStats:
    """State of one connection.  A Writer's connections receive no messages."""

    address: str = measured("``host:port`` of the nsqd", default="")
    partition: int | None = measured("Partition (Youzan's NSQ), or None", default=None)
    open_for: float = measured("Seconds since the connection was opened", default=0.0)
    ready: int = measured("Last RDY sent to the nsqd", "gnsq_ready", label="nsqd")
    share: int = measured("The connection's share of max_in_flight, in messages", "gnsq_share", label="nsqd")
    in_flight: int = measured("Messages received and not answered", "gnsq_in_flight", label="nsqd")
    received: int = measured("Messages received, redeliveries included")
    finished: int = measured("Messages finished (FIN)")
    requeued: int = measured("Messages requeued (REQ)")
    expired: int = measured("Messages that timed out at nsqd (msg_timeout)")
    answers_lost: int = measured("FINs and REQs that could not be sent because the connection was lost")
    bytes_in: int = measured("Bytes received")
    bytes_out: int = measured("Bytes sent")
    last_read_ago: float = measured("Seconds since the last byte was received", default=0.0)
    negotiated: Negotiated | None = measured(
        "Negotiated features: version, TLS, compression, msg_timeout and so on; None before the handshake", default=None
    )
    auth: AuthReply | None = measured(
        "Reply to AUTH: identity, identity_url, permission_count; None if nsqd required no AUTH", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """State of a Reader.  Counts are since start()."""

    topic: str = measured("Topic", default="")
    channel: str = measured("Channel", default="")
    state: str = measured('"connecting", "connected", "backoff", "paused", "closing" or "closed"', default="")
    connections: tuple[ConnectionStats, ...] = measured(
        "Connections to nsqds", "gnsq_connections", combined="sum", default=()
    )
    max_in_flight: int = measured("Configured max_in_flight", "gnsq_max_in_flight", combined="sum")
    in_flight: int = measured("Messages received and not answered, over all connections", combined="sum")
    ready: int = measured("Sum of the last RDY sent on each connection", combined="sum")
    share: int = measured("Sum of the connections' shares of max_in_flight", combined="sum")
    received: int = measured("Messages received, redeliveries included", "gnsq_messages_received_total", combined="sum")
    finished: int = measured("Messages finished (FIN)", "gnsq_messages_total", label="outcome", combined="sum")
    requeued: int = measured("Messages requeued (REQ)", "gnsq_messages_total", label="outcome", combined="sum")
    failures: int = measured("Messages that failed, except by Requeue", "gnsq_handler_failures_total", combined="sum")
    given_up: int = measured(
        "Messages given up; also counted as finished", "gnsq_messages_given_up_total", combined="sum"
    )
    late_answers: int = measured(
        "FINs, REQs and TOUCHes that nsqd refused because the message had timed out", "gnsq_late_answers_total"
    )
    answers_lost: int = measured("FINs and REQs that could not be sent because the connection was lost")
    expired: int = measured(
        "Messages that timed out at nsqd (msg_timeout)", "gnsq_messages_total", label="outcome", combined="sum"
    )
    dropped: int = measured(
        "Messages that were waiting for a handler when their connection was lost; nsqd sends them again",
        "gnsq_messages_total",
        label="outcome",
    )
    reconnects: int = measured("Attempts to reconnect to nsqds given by address", "gnsq_reconnects_total")
    queued: int = measured("Messages (or full batches) that wait for a handler", "gnsq_queued", combined="sum")
    handlers_running: int = measured("Running handlers", "gnsq_handlers_running", combined="sum")
    concurrency: int = measured("Maximum running handlers", "gnsq_concurrency", combined="sum")
    handlers_overdue: int = measured("Running handlers in threads that exceeded time_limit", "gnsq_handlers_overdue")
    handlers_abandoned: int = measured("Handlers that were still running at the end of close()'s timeout")
    oldest_handler: float = measured(
        "Seconds since the longest-running handler started, exact to about a second; 0.0 if no handler runs",
        "gnsq_oldest_handler_seconds",
        default=0.0,
    )
    backoff_level: int = measured("Backoff level; 0: no backoff", "gnsq_backoff_level", combined="highest")
    backoff_for: float = measured(
        "Seconds until backoff sends RDY 1", "gnsq_backoff_seconds", combined="highest", default=0.0
    )
    starved: bool = measured(
        "Whether a connection has at least 85 % of its share in flight", "gnsq_starved", combined="any", default=False
    )
    lookupds: Mapping[str, Health] = measured("State of each nsqlookupd by its address", default=dict)
    unavailable: Mapping[str, str] = measured(
        "Reason why an nsqd is not connected, by ``host:port`` and partition", default=dict
    )
    error: str | None = measured(
        "Error that ended the Reader, which ``join()`` raises; None without an error", default=None
    )

    @property
    def is_ready(self) -> bool:
        """Whether nsqd may send messages on at least one connection (its share is above 0)."""
        return any(c.share > 0 for c in self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """State of a Writer.  Counts are since the Writer was created.  A batch counts as its messages."""

    state: str = measured('"idle" (before the first publish), "connecting", "connected" or "closed"', default="")
    connections: tuple[ConnectionStats, ...] = measured("Connections to nsqds", "gnsq_writer_connections", default=())
    pending: int = measured("Publishes without an outcome yet", "gnsq_publishes_pending")
    published: int = measured("Messages that nsqd answered with OK", "gnsq_publishes_total", label="outcome")
    failed: int = measured("Messages whose publish failed", "gnsq_publishes_total", label="outcome")
    unknown: int = measured("Messages whose outcome is unknown", "gnsq_publishes_total", label="outcome")
    reconnects: int = measured("Attempts to reconnect to an nsqd", "gnsq_writer_reconnects_total")
    max_connections: int = measured("Maximum blocking connections of plain threads to each nsqd")


#: Help texts of the metrics whose values differ by the label ``outcome``.
_BY_OUTCOME = {"gnsq_messages_total": "Messages by outcome", "gnsq_publishes_total": "Published messages by outcome"}


def families(*kinds: type[ReaderStats | WriterStats | ConnectionStats]) -> dict[str, tuple[str, list[str]]]:
    """Return a dict from each metric that *kinds* declare to (help text, further labels)."""
    found = {}
    for data in (spec.metadata for kind in kinds for spec in fields(kind)):
        if data["metric"]:
            labels = [data["label"]] if data["label"] else []
            found[data["metric"]] = (_BY_OUTCOME.get(data["metric"], data["text"]), labels)
    return found


def metrics(stats: ReaderStats | WriterStats | ConnectionStats) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield (metric, values of the further labels, number) for each value that has a metric."""
    for spec in fields(stats):
        metric, label = spec.metadata["metric"], spec.metadata["label"]
        if metric:
            value = getattr(stats, spec.name)
            further = {"": (), "outcome": (spec.name,), "nsqd": (getattr(stats, "address", ""),)}[label]
            yield metric, further, float(len(value) if isinstance(value, tuple) else value)


#: Maps each value of a Reader on a supervisor's live page to how the page combines the values of several processes.
COMBINED: dict[str, Combined] = {
    spec.name: spec.metadata["combined"] for spec in fields(ReaderStats) if spec.metadata["combined"]
}
