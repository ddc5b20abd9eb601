"""Frozen dataclasses for nsqd's ``/stats`` and ``/info``.  Their fields have nsqd's names.

Counters start at 0 when nsqd starts.  Fields that a plain nsqd does not send are None.  ``raw`` is the decoded JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_lite.http.fields import listed, raw


@dataclass(frozen=True, kw_only=True)
class NsqdInfo:
    """The response of nsqd's ``/info``."""

    version: str
    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    start_time: int = 0  # seconds since 1970
    ha_support: bool | None = None  # Youzan: whether nsqd runs in a cluster
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class ClientStats:
    """Connection of a consumer or a producer.  ``raw`` also describes the TLS, compression and AUTH."""

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0  # seconds since 1970
    user_agent: str = ""
    tls: bool = False
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class ChannelStats:
    """A channel of a topic.  ``raw`` also contains ``e2e_processing_latency``."""

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
    skipped: bool | None = None  # Youzan only
    clients: tuple[ClientStats, ...] = listed(ClientStats)
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class TopicStats:
    """A topic or, on Youzan's nsqd, one partition of a topic."""

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
    channels: tuple[ChannelStats, ...] = listed(ChannelStats)
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class NsqdStats:
    """The response of nsqd's ``/stats``.  ``health`` is ``OK`` or an error text.  ``raw`` also contains ``memory``."""

    version: str
    health: str
    start_time: int = 0  # seconds since 1970
    topics: tuple[TopicStats, ...] = listed(TopicStats, required=True)
    producers: tuple[ClientStats, ...] = listed(ClientStats)
    raw: Mapping[str, Any] = raw()

    def topic(self, name: str) -> TopicStats | None:
        """Return the first entry whose topic is *name*, or None."""
        return next((topic for topic in self.topics if topic.topic_name == name), None)

    def channel(self, topic: str, channel: str) -> ChannelStats | None:
        """Return the first entry of *channel* of *topic*, or None."""
        entries = (entry for found in self.topics if found.topic_name == topic for entry in found.channels)
        return next((entry for entry in entries if entry.channel_name == channel), None)

    def depth(self, topic: str, channel: str) -> int | None:
        """Return the depth of a channel, or None if nsqd does not have the channel.

        Youzan's nsqd has an entry for each partition.  The result is the sum over the partitions that this nsqd leads.
        """
        entries = [entry for entry in self.topics if entry.topic_name == topic and entry.is_leader is not False]
        depths = [each.depth for entry in entries for each in entry.channels if each.channel_name == channel]
        return sum(depths) if depths else None
