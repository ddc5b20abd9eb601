"""Frozen dataclasses for nsqlookupd's responses.  Their fields have nsqlookupd's names.

Fields that only Youzan's nsqlookupd sends are None or empty for a plain nsqlookupd.  ``raw`` is the decoded JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.http.fields import fill, items, mapping, names, raw, read
from gnsq_lite.options import Address


@dataclass(frozen=True, kw_only=True)
class LookupdInfo:
    """The response of nsqlookupd's ``/info``."""

    version: str
    ha_support: bool | None = None
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class Node:
    """An nsqd in nsqlookupd's response.

    Only ``nodes()`` sets ``topics``, ``tombstones`` (by topic) and ``partitions`` (by topic).
    """

    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    hostname: str = ""
    remote_address: str = ""
    version: str = ""
    distributed_id: str | None = None
    topics: tuple[str, ...] = ()
    tombstones: Mapping[str, bool] = field(default_factory=dict, hash=False)
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    raw: Mapping[str, Any] = raw()

    @property
    def tcp_address(self) -> Address:
        """(host, port) of nsqd's TCP protocol."""
        return self.broadcast_address, self.tcp_port

    @property
    def http_address(self) -> Address:
        """(host, port) of nsqd's HTTP API.  ``tombstone_topic`` accepts this pair as *node*."""
        return self.broadcast_address, self.http_port


@dataclass(frozen=True, kw_only=True)
class TopicMeta:
    """Configuration of a topic of Youzan's NSQ.  ``topics_meta()`` does not set ``partition_num`` and ``replica``."""

    partition_num: int = 0
    replica: int = 0
    extend_support: bool = False
    ordered: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False
    topic_name: str | None = None  # only set by topics_meta()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True)
class LookupResult:
    """nsqds of a topic.  If nsqlookupd does not know the topic, ``found`` is False and the other fields are empty."""

    found: bool
    channels: tuple[str, ...] = ()
    producers: tuple[Node, ...] = ()
    partitions: Mapping[int, Node] = field(default_factory=dict, hash=False)
    meta: TopicMeta | None = None
    raw: Mapping[str, Any] = raw()


def parse_lookup(url: str, data: Any) -> LookupResult:
    """Parse the decoded response of ``/lookup``.  Raises HTTPResponseError."""
    partitions: dict[int, Node] = {}
    for key, node in mapping(url, data, "partitions").items():
        partitions[read(url, "a key of partitions", key, "int")] = parse_node(url, node)
    meta = mapping(url, data, "meta")
    return LookupResult(
        found=True,
        channels=names(url, data, "channels"),
        producers=tuple(parse_node(url, node) for node in items(url, data, "producers", required=True)),
        partitions=partitions,
        meta=fill(url, TopicMeta, meta) if meta else None,
        raw=data,
    )


def parse_node(url: str, data: Any) -> Node:
    """Parse the entry of one nsqd in a response.  Raises HTTPResponseError."""
    topics = names(url, data, "topics")
    tombstones = items(url, data, "tombstones")
    partitions = {
        topic: tuple(read(url, "a partition", part, "int") for part in items(url, {"partitions": listed}, "partitions"))
        for topic, listed in mapping(url, data, "partitions").items()
    }
    return fill(
        url,
        Node,
        data,
        topics=topics,
        tombstones={topic: bool(dead) for topic, dead in zip(topics, tombstones, strict=False)},
        partitions=partitions,
    )
