"""What /stats shows, as data and as text (nsqd/stats.go, nsqd/http.go @v1.3.0)."""

from __future__ import annotations

import platform
import time
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
    """Return /stats as nsqd's JSON has it, for all or for one topic and channel."""
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
    """Return a topic's entry; *wanted* is the topic asked for ("" for all), None to leave clients out."""
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
    """Return one client's entry; of what it published, *topic*'s count or any."""
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


# -- text -----------------------------------------------------------------------------------------------------------


def as_text(data: dict[str, Any], now: float) -> str:
    """Return /stats as nsqd prints it for people."""
    lines = [
        f"nsqd v{NSQD_VERSION} (built w/Python {platform.python_version()}, gnsq_lite broker, in memory)",
        f"start_time {rfc3339(data['start_time'])}",
        f"uptime {duration(max(0, int((now - data['start_time']) * 1e9)))}",
        "",
        f"Health: {data['health']}",
    ]
    if "memory" in data:
        lines += ["", "Memory:", *[f"   {key:<25}\t{value}" for key, value in data["memory"].items()]]
    lines += ["", "Topics:" if data["topics"] else "Topics: None"]
    text = "\n".join(lines)
    if not data["topics"]:
        text += "\n"
    for topic in data["topics"] or ():
        text += _topic_text(topic, now)
    if not data["producers"]:
        return text + "\nProducers: None\n"
    return text + "\nProducers:\n" + "".join(f"   {_client_text(c, now)}\n" for c in data["producers"])


def _topic_text(topic: dict[str, Any], now: float) -> str:
    text = (
        f"\n{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}] depth: {topic['depth']:<5}"
        f" be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: \n"
    )
    for channel in topic["channels"]:
        text += (
            f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}] depth: {channel['depth']:<5}"
            f" be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4}"
            f" def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5}"
            f" timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: \n"
        )
        text += "".join(f"        {_client_text(c, now)}\n" for c in channel["clients"] or ())
    return text


def _client_text(entry: dict[str, Any], now: float) -> str:
    port = entry["remote_address"].rpartition(":")[2]
    name = f"{entry['hostname']}:{port} {entry['user_agent']}"
    connected = duration(max(0, int(now - entry["connect_ts"])) * 1_000_000_000)
    if entry.get("pub_counts"):
        total = sum(c["count"] for c in entry["pub_counts"])
        topics = ",".join(f"{c['topic']}={c['count']}" for c in entry["pub_counts"])
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {entry['state']} inflt: {entry['in_flight_count']:<4} rdy: {entry['ready_count']:<4}"
        f" fin: {entry['finish_count']:<8} re-q: {entry['requeue_count']:<8} msgs: {entry['message_count']:<8}"
        f" connected: {connected}"
    )


def rfc3339(seconds: int) -> str:
    """Return local time as Go's RFC3339 prints it."""
    local = time.localtime(seconds)
    zone = time.strftime("%z", local)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + ("Z" if zone == "+0000" else f"{zone[:3]}:{zone[3:]}")


def duration(nanoseconds: int) -> str:
    """Return a duration as Go prints it: 1h2m3.4s, 5.1ms, 0s."""
    if nanoseconds < 1_000_000_000:
        for unit, size in (("ms", 1_000_000), ("µs", 1000), ("ns", 1)):
            if nanoseconds >= size:
                return _decimal(nanoseconds, size) + unit
        return "0s"
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, 1_000_000_000) + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = len(str(unit)) - 1
    fraction = f"{part:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
