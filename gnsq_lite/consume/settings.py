"""The settings of a Reader's core: checked and complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gnsq_lite.dialect import Dialect, Endpoint
from gnsq_lite.message import Message
from gnsq_lite.net.settings import AddressMap, Hooks
from gnsq_lite.options import (
    BackoffOptions,
    ConnectionOptions,
    HandlerOptions,
    LookupOptions,
    ReconnectOptions,
    RetryOptions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A Reader's options, checked and split by the part they are for."""

    topic: str
    channel: str
    handler: Callable[[Any], Any]
    dialect: Dialect
    endpoints: Sequence[Endpoint]
    lookupds: Sequence[str]
    max_in_flight: int
    #: Whether RDY is kept low where that brings messages sooner.
    is_prompt: bool
    concurrency: int | None
    pool: Literal["greenlet", "thread", "inline"]
    batch_size: int | None
    batch_wait: float
    rdy_idle_timeout: float
    rdy_low_timeout: float
    connection: ConnectionOptions
    limits: HandlerOptions
    retry: RetryOptions
    backoff: BackoffOptions
    reconnect: ReconnectOptions
    lookup: LookupOptions
    on_give_up: Callable[[Message], Any]
    #: Whether on_give_up is the user's, not the default.
    gives_up_by_callback: bool
    #: Returns what other processes know of a message: *begun* and *unseen* of ``Tries.gives_up()``.
    known_of: Callable[[Message], tuple[int, int]] = lambda message: (0, 0)
    hooks: Hooks = field(default_factory=Hooks)
    address_map: AddressMap | None = None
    allowed_addresses: Callable[[str, int], bool] | None = None

    def log_fields(self, endpoint: Endpoint | None = None) -> dict[str, Any]:
        """Return the ``extra`` of a log line."""
        found = {"topic": self.topic, "channel": self.channel}
        return found if endpoint is None else {**found, "nsqd": str(endpoint)}
