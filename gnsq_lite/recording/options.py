"""Options of a recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.wire.names import check_channel, check_topic

#: Bytes of packs or objects, and seconds, after which their rows become a sealed file.
SEAL, SEAL_AFTER = 64 << 20, 600.0


@dataclass(frozen=True, kw_only=True)
class RecorderOptions:
    """Options of a recorder.  Durations are seconds.

    *client* has keyword arguments of a Reader, such as addresses, TLS and AUTH.  *retain* is the number of seconds for
    which rows stay (0: no limit).  *retain_bytes* is the maximum bytes of stored rows (None: no limit).  A Spark query
    ignores *retain* and *retain_bytes*, and removes rows when it commits.  Receiving pauses when more than
    *max_waiting* bytes of rows are in no batch of the query (None: no limit), and resumes at 80% of this number.

    If *parquet* is true, the recording becomes sealed.  The rows of a sealed recording become Parquet files of about
    *seal* bytes of frames, or of the rows of *seal_after* seconds.
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
    parquet: bool = False
    seal: int = SEAL
    seal_after: float = SEAL_AFTER
    idle_timeout: float = 2.0
    connect_timeout: float = 30.0
    on_missing_nsqd: str = "error"
    #: Text after "the backlog of the other nsqds was read", such as the option that continues without an nsqd.
    missing_hint: str = ""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_channel(self.channel)
        if self.seal < 1:
            raise OptionError("seal", self.seal, "must be at least 1 byte")

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nsqds or nsqlookupds, for error texts."""
        found = self.client.get("nsqd_tcp_addresses") or self.client.get("lookupd_http_addresses") or []
        return [found] if isinstance(found, str) else list(found)
