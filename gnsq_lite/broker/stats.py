"""Builds the document of /stats (nsqd/stats.go, nsqd/http.go @v1.3.0)."""

from __future__ import annotations

from typing import Any

from gnsq_lite.broker.channels import Channel
from gnsq_lite.broker.messages import Subscriber
from gnsq_lite.broker.nsqd import Nsqd
from gnsq_lite.broker.options import NSQD_VERSION
from gnsq_lite.broker.topics import Topic

_MEMORY_KEYS = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
)


def collect(
    nsqd: Nsqd, topic: str = "", channel: str = "", *, clients: bool = True, memory: bool = True
) -> dict[str, Any]:
    """Return the JSON document of nsqd's /stats, for all topics or for one topic and channel."""
    topics = nsqd.topics.by_name
    shown: list[dict[str, Any]] | None = None
    if not topic or topic in topics:
        chosen = [topics[topic]] if topic else [topics[name] for name in sorted(topics)]
        shown = [_topic(t, channel, topic if clients else None) for t in chosen if not channel or channel in t.channels]
    data: dict[str, Any] = {
        "version": NSQD_VERSION,
        "health": "OK",
        "start_time": int(nsqd.started_at),
        "topics": shown,
    }
    if memory:
        data["memory"] = dict.fromkeys(_MEMORY_KEYS, 0) | {"heap_in_use_bytes": nsqd.topics.shared.meter.used}
    producers = None
    if clients and shown is not None:
        producers = [client(session, topic) for session in nsqd.sessions() if session.pub_counts] or None
    data["producers"] = producers
    return data


def _topic(topic: Topic, channel: str, wanted: str | None) -> dict[str, Any]:
    """Return a topic's entry.  *wanted* is the requested topic or "" (all topics), or None to omit the clients."""
    names = [channel] if channel else sorted(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel(topic.channels[name], wanted) for name in names],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def _channel(channel: Channel, wanted: str | None) -> dict[str, Any]:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": len(channel.deferred),
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.clients),
        "clients": None if wanted is None else [client(c, wanted) for c in channel.clients.values()],
        "paused": channel.paused,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def client(consumer: Subscriber, topic: str) -> dict[str, Any]:
    """Return one client's entry, with its publish count for *topic*, or for some topic if *topic* is ""."""
    session: Any = consumer
    profile, grant, tls = session.profile, session.grant, session.link.tls_info
    data: dict[str, Any] = {
        "client_id": profile.client_id,
        "hostname": profile.hostname,
        "version": "V2",
        "remote_address": session.link.remote_address,
        "state": session.state,
        "ready_count": session.ready_count,
        "in_flight_count": session.in_flight_count,
        "message_count": session.message_count,
        "finish_count": session.finish_count,
        "requeue_count": session.requeue_count,
        "connect_ts": int(session.connected_at),
        "sample_rate": session.sample_rate,
        "deflate": session.compression == "deflate",
        "snappy": session.compression == "snappy",
        "user_agent": profile.user_agent,
    }
    if grant is not None and grant.permission_count:
        data["authed"] = True
    if grant is not None and grant.identity:
        data["auth_identity"] = grant.identity
    if grant is not None and grant.identity_url:
        data["auth_identity_url"] = grant.identity_url
    counts = [{"topic": t, "count": n} for t, n in session.pub_counts.items() if not topic or t == topic]
    if counts:
        data["pub_counts"] = counts[:1]
    data["tls"] = session.tls
    data["tls_cipher_suite"] = tls.get("tls_cipher_suite", "")
    data["tls_version"] = tls.get("tls_version", "")
    data["tls_negotiated_protocol"] = ""
    data["tls_negotiated_protocol_is_mutual"] = session.tls
    return data
