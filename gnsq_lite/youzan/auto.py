"""``dialect="auto"``: plain NSQ or Youzan's, told by what each server says of itself (YZ-14).

An nsqlookupd of Youzan's has a mark in the version that ``/info`` tells, and lists partitions; nsqd has the mark in
its reply to IDENTIFY.  What an nsqlookupd says of those who registered decides nothing: anybody may register.  Each
answer, topic and connection is dealt with on its own, so both kinds may stand beside each other.

A Writer publishes nothing before each nsqlookupd has said what it is, or failed.  Where one is Youzan's, each topic is
looked up: one that Youzan's know goes to its leaders and nowhere else; one that they do not know goes to those that a
plain nsqlookupd lists for it.  Where nsqds are given without an nsqlookupd, nobody tells of partitions: Youzan's nsqd
then chooses one that it leads, and its ids are read as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gnsq_lite.dialect import (
    INFO,
    YOUZAN_ONLY,
    Dialect,
    Endpoint,
    Lookup,
    MessageFactory,
    PlainDialect,
    PublishRequest,
    Role,
)
from gnsq_lite.errors import NsqdError, NSQError, OptionError
from gnsq_lite.message import Message
from gnsq_lite.policy.leaders import Leaders
from gnsq_lite.policy.sequence import Sequence as Sequencer
from gnsq_lite.wire.constants import MAX_INT32
from gnsq_lite.youzan.constants import VERSION_MARK
from gnsq_lite.youzan.dialect import YouzanDialect
from gnsq_lite.youzan.lookup import TopicLayout
from gnsq_lite.youzan.messages import Layout, message_factory


def auto_dialect(**options: Any) -> Dialect:
    """Return what finds out; where *options* only Youzan's NSQ knows are given, that.  Raises OptionError."""
    return YouzanDialect(**options) if options else AutoDialect()


class _Itself:
    """What an nsqlookupd of Youzan's kind says instead of its nsqds: those are looked up by topic."""

    def only(self, allowed: Callable[[Endpoint], bool]) -> _Itself:
        return self


class AutoDialect(Dialect):
    """Plain NSQ where no server shows that it is one of Youzan's; one per Reader or Writer."""

    name = "auto"

    def __init__(self) -> None:
        self._plain, self._youzan = PlainDialect(), YouzanDialect()
        #: The nsqlookupds that said last that they are Youzan's.
        self._lookupds: frozenset[str] = frozenset()
        #: Whether a leader was ever listed.
        self._leads = False

    def _of(self, endpoint: Endpoint) -> Dialect:
        """Return the dialect of a connection: who lists partitions is Youzan's."""
        return self._plain if endpoint.partition is None else self._youzan

    # -- discovery

    def lookup_path(self, topic: str, role: Role) -> str:
        """Ask a Reader's nsqlookupds for what plain ones know; a Writer's, what they are, and then for a topic."""
        if role == "write":
            return self._youzan.lookup_path(topic, role) if topic else INFO
        return self._plain.lookup_path(topic, role)

    def fuller_path(self, topic: str, role: Role, data: Any) -> str | None:
        """Return what to ask an nsqlookupd for that answered so; None: no more."""
        if not topic:  # a Writer's: it said what it is
            return None if is_youzan_info(data) or _lists(data) else self._plain.lookup_path("", "write")
        return self._youzan.lookup_path(topic, role) if role == "read" and is_youzan_answer(data) else None

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Return what the answer says, in the dialect it is in.  Raises HTTPResponseError."""
        if role == "write" and not topic and is_youzan_info(data):
            return Lookup((), meta=_Itself())
        if not is_youzan_answer(data):
            return self._plain.parse_lookup(topic, role, data)
        self._leads = True
        return self._youzan.parse_lookup(topic, role, data)

    # -- consuming

    def identify_extra(self, topic: str, endpoint: Endpoint) -> Mapping[str, Any]:
        """As the endpoint's dialect."""
        return self._of(endpoint).identify_extra(topic, endpoint)

    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> Sequence[bytes]:
        """As the endpoint's dialect."""
        return self._of(endpoint).subscribe(topic, channel, endpoint)

    def message_factory(self, topic: str, endpoint: Endpoint, command: int, negotiated: Any) -> MessageFactory:
        """As the connection's reply to IDENTIFY says."""
        if negotiated is None or VERSION_MARK not in negotiated.version:
            return Message  # where IDENTIFY has not told yet, none come
        if endpoint.partition is None:
            return _PLAIN_SUB
        return self._youzan.message_factory(topic, endpoint, command, negotiated)

    def ready_limit(self, topic: str, endpoint: Endpoint) -> int | None:
        """As the endpoint's dialect."""
        return self._of(endpoint).ready_limit(topic, endpoint)

    def sequence(self, topic: str, endpoint: Endpoint) -> Sequencer | None:
        """As the endpoint's dialect."""
        return self._of(endpoint).sequence(topic, endpoint)

    def look_up_after(self, error: NSQError) -> float | None:
        """As Youzan's where one that was lost may have been a leader."""
        return (self._youzan if self._leads else self._plain).look_up_after(error)

    # -- publishing

    @property
    def is_undecided(self) -> bool:
        """Until :meth:`decide`; it may be asked to decide again, then."""
        return True

    def decide(self, said: Mapping[str, Lookup]) -> None:
        """Take what each nsqlookupd of a Writer said last, by its address."""
        self._lookupds = frozenset(address for address, lookup in said.items() if isinstance(lookup.meta, _Itself))

    def needs_route(self, topic: str) -> bool:
        """Whether an nsqlookupd is Youzan's."""
        return bool(self._lookupds)

    def agreed(
        self, lookup: Lookup, said: Mapping[str, Lookup], failed: AbstractSet[str], missing: AbstractSet[str]
    ) -> Lookup | None:
        """Return what the nsqlookupds, which may be of two kinds, have settled; None: nothing."""
        if isinstance(lookup.meta, TopicLayout):
            return lookup
        if any(isinstance(other.meta, TopicLayout) for other in said.values()):
            return None  # it is Youzan's, whoever else has one of that name
        unasked = missing or not self._lookupds - failed
        return Lookup((), left_out=lookup.left_out) if unasked else lookup

    def _by(self, route: Lookup | None) -> Dialect:
        return self._youzan if route is not None and isinstance(route.meta, TopicLayout) else self._plain

    def choose(self, request: PublishRequest, endpoints: Sequence[Endpoint], route: Lookup | None) -> Endpoint:
        """As the dialect of the topic's route.  Raises NotSent, OptionError."""
        return self._by(route).choose(request, endpoints, route)

    def beside_bodies(
        self, headers: Sequence[Mapping[str, Any] | None] | None, trace_ids: Sequence[int] | None
    ) -> tuple[Sequence[bytes] | None, Sequence[int] | None, int]:
        """As Youzan's."""
        return self._youzan.beside_bodies(headers, trace_ids)

    def prepare(self, request: PublishRequest) -> PublishRequest:
        """As Youzan's."""
        return self._youzan.prepare(request)

    def leaders(self, topic: str, route: Lookup | None) -> Leaders | None:
        """As the dialect of the topic's route."""
        return self._by(route).leaders(topic, route)

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """As the dialect of the topic's route.  Raises OptionError."""
        dialect = self._by(route)
        if dialect is self._plain:
            for name in YOUZAN_ONLY:
                if getattr(request, name) is not None:
                    why = "needs Youzan's NSQ, and no server has shown to be that: pass dialect='youzan'"
                    raise OptionError(name, getattr(request, name), why)
        return dialect.encode(dialect.check(request, MAX_INT32), endpoint, route)

    def receipt(self, request: PublishRequest, body: bytes) -> Any:
        """As Youzan's, which knows plain NSQ's too.  Raises ProtocolError."""
        return self._youzan.receipt(request, body)

    def should_reroute(self, error: NsqdError) -> bool:
        """As Youzan's."""
        return self._youzan.should_reroute(error)


def is_youzan_info(data: Any) -> bool:
    """Whether an answer of ``/info`` is one of Youzan's nsqlookupd."""
    return isinstance(data, Mapping) and (VERSION_MARK in str(data.get("version")) or "ha_support" in data)


def is_youzan_answer(data: Any) -> bool:
    """Whether an answer of ``/lookup`` is one of Youzan's nsqlookupd: it knows partitions."""
    return isinstance(data, Mapping) and any(isinstance(data.get(key), Mapping) for key in ("meta", "partitions"))


def _lists(data: Any) -> bool:
    return isinstance(data, Mapping) and "producers" in data


_PLAIN_SUB = message_factory(Layout(), None)
