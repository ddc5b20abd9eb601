"""What nsqd says of itself: ``/stats`` and ``/info``, as frozen dataclasses with nsqd's own names.

Counts are since nsqd started.  Fields that only Youzan's nsqd fills are None on a plain one.  ``raw`` holds the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_lite.errors import HTTPResponseError
from gnsq_lite.http.fields import fill, finite, items, mapping, raw


@dataclass(frozen=True, kw_only=True)
class NsqdInfo:
    """nsqd's ``/info``."""

    version: str
    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    start_time: float = 0.0  # seconds since 1970
    ha_support: bool | None = None  # Youzan's: whether nsqd runs in a cluster
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class Latency:
    """End-to-end processing latency; nsqd collects it with ``--e2e-processing-latency-percentile``."""

    count: int = 0
    percentiles: tuple[tuple[float, float], ...] = ()  # (quantile, seconds)
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class ClientStats:
    """A connection: a consumer of a channel, or a producer."""

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: float = 0.0  # seconds since 1970
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: bool = False
    tls_version: str = ""
    tls_cipher_suite: str = ""
    desired_tag: str | None = None  # Youzan's
    pub_counts: tuple[tuple[str, int], ...] = ()  # (topic, messages published)
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class ChannelStats:
    """A channel of a topic."""

    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: bool = False
    skipped: bool | None = None  # Youzan's
    clients: tuple[ClientStats, ...] = ()
    e2e_processing_latency: Latency = Latency()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class TopicStats:
    """A topic or, on Youzan's nsqd, one partition of it."""

    topic_name: str
    topic_partition: int | None = None
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    is_leader: bool | None = None
    is_multi_ordered: bool | None = None
    is_multi_part: bool | None = None
    is_ext: bool | None = None
    channels: tuple[ChannelStats, ...] = ()
    e2e_processing_latency: Latency = Latency()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class MemoryStats:
    """Go's memory statistics."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class NsqdStats:
    """nsqd's ``/stats``.  ``health`` is ``OK``, or says what is wrong."""

    version: str
    health: str
    start_time: float = 0.0  # seconds since 1970
    topics: tuple[TopicStats, ...] = ()
    producers: tuple[ClientStats, ...] = ()
    memory: MemoryStats | None = None
    raw: Mapping[str, Any] = raw()

    def topic(self, name: str) -> TopicStats | None:
        """Return the first entry of the topic *name*, or None."""
        return next((topic for topic in self.topics if topic.topic_name == name), None)

    def channel(self, topic: str, channel: str) -> ChannelStats | None:
        """Return the first entry of the channel *channel* of *topic*, or None."""
        entries = (entry for found in self.topics if found.topic_name == topic for entry in found.channels)
        return next((entry for entry in entries if entry.channel_name == channel), None)

    def depth(self, topic: str, channel: str) -> int | None:
        """Return the messages that wait in a channel, or None if nsqd does not have it.

        Youzan's nsqd has an entry for each partition: those that it leads are added up, and replicas do not count.
        """
        entries = [entry for entry in self.topics if entry.topic_name == topic and entry.is_leader is not False]
        depths = [each.depth for entry in entries for each in entry.channels if each.channel_name == channel]
        return sum(depths) if depths else None


def parse_stats(url: str, data: Any) -> NsqdStats:
    """Return the statistics in the decoded answer of ``/stats?format=json``.  Raises HTTPResponseError."""
    memory = mapping(url, data, "memory")
    return fill(
        url,
        NsqdStats,
        data,
        topics=tuple(_topic(url, topic) for topic in items(url, data, "topics", required=True)),
        producers=tuple(_client(url, client) for client in items(url, data, "producers")),
        memory=fill(url, MemoryStats, memory) if memory else None,
    )


def _topic(url: str, data: Any) -> TopicStats:
    channels = tuple(_channel(url, channel) for channel in items(url, data, "channels"))
    return fill(url, TopicStats, data, channels=channels, e2e_processing_latency=_latency(url, data))


def _channel(url: str, data: Any) -> ChannelStats:
    clients = tuple(_client(url, client) for client in items(url, data, "clients"))
    return fill(url, ChannelStats, data, clients=clients, e2e_processing_latency=_latency(url, data))


def _client(url: str, data: Any) -> ClientStats:
    counts = [fill(url, _PubCount, entry) for entry in items(url, data, "pub_counts")]
    return fill(url, ClientStats, data, pub_counts=tuple((count.topic, count.count) for count in counts))


def _latency(url: str, data: Any) -> Latency:
    latency = mapping(url, data, "e2e_processing_latency")
    points: list[tuple[float, float]] = []
    for point in items(url, latency, "percentiles"):
        try:
            points.append((finite(point["quantile"]), finite(point["value"]) / 1e9))
        except (KeyError, TypeError, ValueError):
            raise HTTPResponseError(url, "a percentile has no quantile and value") from None
    return fill(url, Latency, latency, percentiles=tuple(points))


@dataclass(frozen=True, kw_only=True)
class _PubCount:
    topic: str = ""
    count: int = 0
