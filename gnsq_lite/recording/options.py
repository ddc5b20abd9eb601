"""Options of a recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.wire.names import check_channel, check_topic


@dataclass(frozen=True, kw_only=True)
class RecorderOptions:
    """Options of a recorder.  Durations are seconds.

    *client*: keyword arguments of a Reader for addresses, TLS, AUTH and others.  *retain*: seconds that rows stay;
    *retain_bytes*: bytes that stay; 0 and None: no limit.  A query that owns the recording removes rows at its commit.
    *max_waiting*: bytes not yet taken by the owner above which receiving pauses; None: no limit.
    """

    topic: str
    channel: str
    client: Mapping[str, Any] = field(repr=False)
    max_in_flight: int = 2500
    connections_per_nsqd: int = 1
    msg_timeout: float | None = None
    ordered: bool = False
    partitions: tuple[int, ...] = ()
    include_youzan: bool = False
    dedup_rows: int = 20_000_000
    retain: float = 0.0
    retain_bytes: int | None = None
    max_waiting: int | None = None
    idle_timeout: float = 2.0
    connect_timeout: float = 30.0
    on_missing_nsqd: str = "error"

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_channel(self.channel)

    @property
    def addresses(self) -> list[str]:
        """The addresses, for an error's text."""
        found = self.client.get("nsqd_tcp_addresses") or self.client.get("lookupd_http_addresses") or []
        return [found] if isinstance(found, str) else list(found)
