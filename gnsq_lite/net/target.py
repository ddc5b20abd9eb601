"""The purpose of a connection, and the owner that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnsq_lite.dialect import Endpoint, MessageFactory
from gnsq_lite.errors import NsqdError
from gnsq_lite.options import Address


class Owner(Protocol):
    """Whom a connection tells of the frames that are no messages; in the loop's thread; must not wait."""

    def on_response(self, connection: Any, body: bytes) -> None:
        """nsqd's next answer."""

    def on_error_frame(self, connection: Any, error: NsqdError) -> None:
        """An error that leaves the connection open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a connection is for: an nsqd, and for a Reader what to subscribe to."""

    endpoint: Endpoint
    topic: str = ""
    channel: str = ""
    subscribe: bytes | None = None
    #: Returns how messages are made, once what was negotiated is known.
    choose_message: Callable[[Any], MessageFactory] | None = None
    identify_extra: Mapping[str, Any] | None = None
    #: Called with nsqd's version and address; raises if nsqd is not to be used.
    check_server: Callable[[str, str], None] | None = None
    #: Where to connect to in truth, when an address map says other than the endpoint.
    connect_to: Address | None = None
