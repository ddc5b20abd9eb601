"""``dialect="auto"``: plain NSQ or Youzan's, told by what nsqlookupd and nsqd say (YZ-14).

nsqlookupd of Youzan's kind lists partitions, and versions with a mark of their own; nsqd has the mark in its reply to
IDENTIFY.  Until one of them has spoken, all is plain NSQ, which both understand.  Where nsqds are given without a
nsqlookupd, nobody tells of partitions: Youzan's nsqd then chooses one that it leads, and its ids are read as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Dialect, Endpoint, Lookup, MessageFactory, PlainDialect, PublishRequest, Role
from gnsq_lite.errors import NsqdError, NSQError, OptionError
from gnsq_lite.message import Message
from gnsq_lite.policy.sequence import Sequence as Sequencer
from gnsq_lite.youzan.constants import VERSION_MARK
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.messages import Layout, message_factory


def auto_dialect(**options: Any) -> Dialect:
    """Return what finds out; where *options* only Youzan's NSQ knows are given, that.  Raises OptionError."""
    return YouzanDialect(**options) if options else AutoDialect()


class AutoDialect:
    """Plain NSQ until a server shows that it is one of Youzan's; one per Reader or Writer."""

    name = "auto"

    def __init__(self) -> None:
        self._plain, self._youzan = PlainDialect(), YouzanDialect()
        self._found: Dialect = self._plain

    @property
    def found(self) -> str:
        """Name of the dialect that is spoken now."""
        return self._found.name

    # -- discovery

    def lookup_path(self, topic: str, role: Role) -> str:
        """Ask for what plain nsqlookupd knows; for a topic's leaders once :meth:`needs_route` holds."""
        dialect = self._youzan if role == "write" and topic else self._plain
        return dialect.lookup_path(topic, role)

    def fuller_path(self, topic: str, data: Any) -> str | None:
        """Return what to ask a nsqlookupd for that answered a Reader so: one of Youzan's tells more; None: no more."""
        return self._youzan.lookup_path(topic, "read") if is_youzan_answer(data) else None

    def lookupd_members(self, seeds: tuple[str, ...], clock: Clock) -> None:
        """Those that are configured."""

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Return what the answer says, in the dialect it is in.  Raises HTTPResponseError."""
        if is_youzan_answer(data):
            self._found = self._youzan
        if self._found is self._youzan and role == "write" and not topic:
            return Lookup(())  # each topic is looked up on its own
        return self._found.parse_lookup(topic, role, data)

    # -- consuming

    def identify_extra(self, topic: str, endpoint: Endpoint) -> Mapping[str, Any]:
        """As the dialect that was found."""
        return self._found.identify_extra(topic, endpoint)

    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> Sequence[bytes]:
        """As the dialect that was found."""
        return self._found.subscribe(topic, channel, endpoint)

    def message_factory(self, topic: str, endpoint: Endpoint, command: int, negotiated: Any) -> MessageFactory:
        """As the dialect that was found; before that, as the connection's reply to IDENTIFY says."""
        if self._found is self._youzan:
            return self._youzan.message_factory(topic, endpoint, command, negotiated)
        return _by_identify(negotiated)

    def ready_limit(self, topic: str, endpoint: Endpoint) -> int | None:
        """As the dialect that was found."""
        return self._found.ready_limit(topic, endpoint)

    def sequence(self, topic: str, endpoint: Endpoint) -> Sequencer | None:
        """As the dialect that was found."""
        return self._found.sequence(topic, endpoint)

    def give_up(self, topic: str, has_callback: bool) -> Literal["stop", "drop"]:
        """As the dialect that was found."""
        return self._found.give_up(topic, has_callback)

    def look_up_after(self, error: NSQError) -> float | None:
        """As the dialect that was found."""
        return self._found.look_up_after(error)

    # -- publishing

    def needs_route(self, topic: str) -> bool:
        """Whether it was found that publishes go to leaders."""
        return self._found.needs_route(topic)

    def choose(self, request: PublishRequest, endpoints: Sequence[Endpoint], route: Lookup | None) -> Endpoint:
        """As the dialect that was found.  Raises NotSent, OptionError."""
        return self._found.choose(request, endpoints, route)

    def prepare(self, request: PublishRequest) -> PublishRequest:
        """As the dialect that was found, which is Youzan's where anything is routed."""
        return self._youzan.prepare(request)

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """As the dialect that was found.  Raises OptionError."""
        if self._found is self._plain:
            for name in ("key", "partition", "trace_id", "headers"):
                if getattr(request, name) is not None:
                    why = "needs Youzan's NSQ, and no server has shown to be that: pass dialect='youzan'"
                    raise OptionError(name, getattr(request, name), why)
        return self._found.encode(request, endpoint, route)

    def receipt(self, request: PublishRequest, body: bytes) -> Any:
        """As the dialect that was found.  Raises ProtocolError."""
        return self._found.receipt(request, body)

    def should_reroute(self, error: NsqdError) -> bool:
        """As the dialect that was found."""
        return self._found.should_reroute(error)


def is_youzan_answer(data: Any) -> bool:
    """Whether an answer of ``/lookup`` or ``/nodes`` is one of Youzan's nsqlookupd."""
    if not isinstance(data, Mapping):
        return False
    if isinstance(data.get("meta"), Mapping) or isinstance(data.get("partitions"), Mapping):
        return True
    nodes = data.get("producers")
    return isinstance(nodes, list) and any(
        isinstance(node, Mapping) and VERSION_MARK in str(node.get("version")) for node in nodes
    )


_PLAIN_SUB = message_factory(Layout(), None)


def _by_identify(negotiated: Any) -> MessageFactory:
    """Return how messages are made, once IDENTIFY has told what the server is; before that, none come."""
    return _PLAIN_SUB if negotiated is not None and VERSION_MARK in negotiated.version else Message
