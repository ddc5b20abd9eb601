"""How to look up, subscribe, publish and decode: plain NSQ here, Youzan's in :mod:`gnsq_lite.youzan`.

Reader and Writer know only the :class:`Dialect` protocol.  A dialect does no I/O: it turns what the user asked for
into bytes and what a server said into values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import quote

from gnsq_lite.errors import HTTPResponseError, NotSent, NsqdError, NSQError, OptionError, WrongDialectError, printable
from gnsq_lite.message import Message
from gnsq_lite.options import Address, format_address, is_host_name
from gnsq_lite.wire import commands

Role = Literal["read", "write"]

#: In the version of every nsqd of Youzan's kind, and of no other.
VERSION_MARK = "-HA."

#: Makes of (topic, body, headers) the body and the headers that are sent.
Packer: TypeAlias = Callable[[str, bytes, "Mapping[str, Any] | None"], "tuple[bytes, Mapping[str, Any] | None]"]

#: Makes a message of (connection, timestamp_ns, attempts, id, rest of the frame).
MessageFactory: TypeAlias = Callable[[Any, int, int, bytes, bytes], Message]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One connection to make: an nsqd and, in Youzan's dialect, one partition on it."""

    host: str
    port: int
    partition: int | None = None

    @property
    def address(self) -> Address:
        """(host, port)"""
        return self.host, self.port

    def __str__(self) -> str:
        where = format_address((self.host, self.port))
        return where if self.partition is None else f"{where}/{self.partition}"


class LookupMeta(Protocol):
    """What a dialect keeps of an answer beside its endpoints."""

    def only(self, allowed: Callable[[Endpoint], bool]) -> LookupMeta:
        """Return it without the endpoints that *allowed* refuses."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one answer of an nsqlookupd says about a topic.

    ``meta`` is the dialect's own.  ``left_out`` says, printable, which of its entries were of no use; the first
    :data:`MAX_LEFT_OUT` of them.
    """

    endpoints: tuple[Endpoint, ...]
    meta: LookupMeta | None = None
    left_out: tuple[str, ...] = ()

    def only(self, allowed: Callable[[Endpoint], bool]) -> Lookup:
        """Return it without the endpoints that *allowed* refuses, here and in ``meta``."""
        meta = None if self.meta is None else self.meta.only(allowed)
        return Lookup(tuple(filter(allowed, self.endpoints)), meta, self.left_out)


@dataclass(slots=True, kw_only=True)
class PublishRequest:
    """One publish as the user asked for it, checked: names are valid, bodies are bytes of allowed size.

    Never changed; not frozen, because that alone would take longer than all else that is done to choose a leader.
    """

    topic: str
    bodies: Sequence[bytes]
    batch: bool = False
    defer: float = 0.0
    key: bytes | None = None
    partition: int | None = None
    trace_id: int | None = None
    headers: Mapping[str, Any] | None = field(default=None)
    #: Of a batch: one of each for each body, the headers as they are sent.
    batch_headers: Sequence[bytes] | None = None
    trace_ids: Sequence[int] | None = None


class RoutedPublish(Protocol):
    """One message or batch on its way, as a :class:`Router` sees it."""

    topic: str
    batch: bool
    #: Set where more is asked for than a plain message or batch.
    request: PublishRequest | None
    #: The command that is sent.
    data: bytes
    #: Its place among the publishes of the Writer.
    number: int
    #: The endpoint whose turn it is, if any may take it.
    leader: Endpoint | None
    #: The last refusal.
    last_error: NSQError | None
    #: Whether an nsqd may have it; and whether an earlier attempt is why.
    sent: bool
    in_doubt: bool

    def done(self) -> bool: ...

    def asked(self) -> PublishRequest: ...

    def command_behind(self, head: bytes) -> bytes: ...


class Timer(Protocol):
    """Calls a function once."""

    def close(self) -> None: ...


class Lookups(Protocol):
    """The lookups of one topic."""

    def poke(self) -> None:
        """Ask the nsqlookupds now."""

    @property
    def said(self) -> Mapping[str, Lookup]:
        """The last good answer of each nsqlookupd, by its address."""

    def health(self) -> Mapping[str, Any]:
        """Return the state of each nsqlookupd by its address; ``ok`` is False while it fails."""


class RouterHost(Protocol):
    """The core of a Writer, as a :class:`Router` sees it."""

    def send_to(self, endpoint: Endpoint, publish: Any) -> bool:
        """Send a publish; False if the endpoint, which is connected from now on, takes none for now."""

    def fail(self, publish: Any, error: NSQError) -> None:
        """Settle a publish with an error."""

    def look_up(self, topic: str, on_lookup: Callable[[Lookup], None], on_outage: Callable[[], None]) -> Lookups | None:
        """Look a topic up from now on; return None without nsqlookupds.  *on_outage*: all of them fail."""

    def call_later(self, seconds: float, act: Callable[[], None]) -> Timer:
        """Call *act* once."""

    def avoids(self, endpoint: Endpoint) -> bool:
        """Return whether the endpoint is silent or cannot be reached; from any thread."""

    def load(self, endpoint: Endpoint) -> int:
        """Return how many publishes the endpoint has not answered; from any thread."""

    def owes(self, topic: str, partition: int) -> bool:
        """Return whether a publish to a partition is unanswered; disconnect silent nodes that owe it."""


class Router(Protocol):
    """Chooses the endpoint of each publish, and holds those that cannot be sent yet.  In the loop's thread.

    What has a body is what plain NSQ does.
    """

    def leader(self, publish: RoutedPublish) -> Endpoint | None:
        """Make a publish's command, return its endpoint; from any thread.  None: the loop has to send it."""
        return None

    def send(self, publish: RoutedPublish) -> None:
        """Send a publish, or hold it."""

    def refused(self, publish: RoutedPublish, error: NSQError, leader: Endpoint) -> None:
        """An endpoint has refused a publish, and another one may take it."""
        return

    def put_back(self, publishes: Iterable[Any], lost: Endpoint | None) -> None:
        """Send again what a lost endpoint, or None, a silent one, did not take."""

    def look_again(self, endpoint: Endpoint) -> None:
        """An endpoint is silent: another one may lead its partition."""
        return

    def on_room(self, endpoint: Endpoint) -> None:
        """An endpoint takes publishes."""

    def goes_elsewhere(self, publish: RoutedPublish, endpoint: Endpoint) -> bool:
        """Return whether another endpoint that is not silent may take a publish."""

    def waiting(self) -> Sequence[Any]:
        """Return the publishes that are held."""

    def forget_done(self) -> None:
        """Drop held publishes that have their outcome."""

    def unavailable(self, publish: RoutedPublish) -> NSQError | None:
        """Return why no endpoint may take a publish, as far as is known; from any thread."""
        return None

    def not_sent(self, publish: RoutedPublish, error: NotSent) -> NotSent:
        """Return the error of an expired publish that no nsqd has, given one without its partition; from any thread."""
        return error

    def close(self) -> None:
        """Look up nothing more."""
        return


class Dialect(Protocol):
    """What Reader and Writer ask of a flavour of NSQ: all of it.  What has a body is what plain NSQ does."""

    name: str
    #: What to GET from an nsqlookupd for the others of its cluster (YZ-1); "": there are those that are configured.
    lookupds_path: str = ""

    # -- discovery
    def lookup_path(self, topic: str, role: Role) -> str:
        """Return path and query to GET from every nsqlookupd."""

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Return what the decoded JSON says, its ``data`` wrapper removed.  Raises HTTPResponseError."""

    def named_endpoints(self, nsqds: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the endpoints to read of *nsqds*, which are given and not looked up."""
        return nsqds

    def parse_lookupds(self, data: Any) -> tuple[Address, ...]:
        """Return the HTTP addresses that an answer to that names.  Raises HTTPResponseError."""
        return ()

    # -- connecting
    def identify_extra(self, topic: str, endpoint: Endpoint) -> Mapping[str, Any]:
        """Return further keys for IDENTIFY."""
        return {}

    def check_server(self, version: str, address: str) -> None:
        """Raise WrongDialectError if the nsqd at *address* has a *version* that speaks another dialect (YZ-14)."""
        return

    # -- consuming
    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> Sequence[bytes]:
        """Return the commands to try in turn: the next one where nsqd calls one an invalid command."""

    def message_factory(self, topic: str, endpoint: Endpoint, command: int, negotiated: Any) -> MessageFactory:
        """Return how messages of a connection are made; *command* is the index of the SUB that was accepted."""
        return Message

    def is_ordered(self, topic: str) -> bool:
        """Whether *topic* is consumed in order, one message of a partition at a time (YZ-6)."""
        return False

    def give_up(self, topic: str, has_callback: bool) -> Literal["stop", "drop"]:
        """Return what becomes of a message after max_attempts, *has_callback* on_give_up was given (YZ-13)."""
        return "drop"

    def calls_for_lookup(self, error: NSQError) -> bool:
        """Whether *error*, which ended a Reader's connection, means: look for the leader now (YZ-12, YZ-18)."""
        return False

    # -- publishing
    def needs_route(self, topic: str) -> bool:
        """Whether publishing to *topic* needs a lookup of that topic (role "write") first."""
        return False

    def router(self, host: RouterHost, nsqds: Sequence[Endpoint]) -> Router | None:
        """Return what chooses the endpoint of each publish; None: the nsqds take turns."""
        return None

    @property
    def pack(self) -> Packer | None:
        """What compresses bodies before they are checked; None: nothing does."""
        return None

    def beside_bodies(
        self, headers: Sequence[Mapping[str, Any] | None] | None, trace_ids: Sequence[int] | None
    ) -> tuple[Sequence[bytes] | None, Sequence[int] | None, int]:
        """Return headers as they are sent, or trace ids, one for each body of a batch, and the bytes beside them.

        Raises OptionError for what the dialect cannot send.
        """
        name, given = ("trace_ids", trace_ids) if headers is None else ("headers", headers)
        raise OptionError(name, given, "needs Youzan's NSQ; this Writer's dialect is 'nsq'")

    @property
    def batch_extra(self) -> int:
        """Bytes that each body of a batch takes beside its own and its size."""
        return 0

    def check(self, request: PublishRequest, most: int) -> PublishRequest:
        """Return *request* with its headers encoded; *most* is the size of the largest message.

        Raises OptionError, MessageTooLarge for what nsqd would refuse whatever the topic is.
        """
        return request

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """Return the bytes of the command.  Raises OptionError for what the dialect cannot do."""

    def receipt(self, request: PublishRequest, body: bytes) -> Any:
        """Return the caller's result for nsqd's answer; None for a plain OK.  Raises ProtocolError."""
        return None

    def should_reroute(self, error: NsqdError) -> bool:
        """Whether *error* means: look the topic up again and publish to the new leader."""
        return False


class PlainDialect(Dialect):
    """NSQ as nsqd 1.x speaks it."""

    name = "nsq"

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            raise OptionError(name, value, "needs Youzan's NSQ: pass dialect='youzan'")

    def lookup_path(self, topic: str, role: Role) -> str:
        """Ask for the topic's nsqds; to publish, for all nsqds: the first publish makes the topic (PUB-4)."""
        return "/nodes" if role == "write" else f"/lookup?topic={quote(topic, safe='')}"

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Return the producers of the answer, keyed by broadcast address and TCP port (DISC-2)."""
        left_out: dict[str, None] = {}
        endpoints = tuple(producers(data, left_out))
        return Lookup(endpoints, left_out=tuple(left_out))

    def check_server(self, version: str, address: str) -> None:
        """Raise WrongDialectError for Youzan's nsqd: it would send or take the messages of one partition alone."""
        if VERSION_MARK in version:
            raise WrongDialectError(address, f"this is Youzan's NSQ ({printable(version[:40])}): pass dialect='youzan'")

    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> Sequence[bytes]:
        """SUB."""
        return (commands.subscribe(topic, channel),)

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """PUB, MPUB or DPUB."""
        refuse_youzan_only(request)
        if request.batch:
            return commands.multipublish(request.topic, request.bodies)
        if request.defer:
            return commands.defer_publish(request.topic, request.bodies[0], request.defer)
        return commands.publish(request.topic, request.bodies[0])


#: What a request may ask of Youzan's NSQ alone.
YOUZAN_ONLY = ("key", "partition", "trace_id", "headers", "batch_headers", "trace_ids")


def refuse_youzan_only(request: PublishRequest) -> None:
    """Raise OptionError for what only Youzan's NSQ can do: nothing is dropped silently."""
    for name in YOUZAN_ONLY:
        if getattr(request, name) is not None:
            raise OptionError(name, getattr(request, name), "needs Youzan's NSQ; this Writer's dialect is 'nsq'")


#: Most unusable entries of an answer that are reported: anyone may register any number.
MAX_LEFT_OUT = 100

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 100


def producers(data: Any, left_out: dict[str, None]) -> list[Endpoint]:
    """Return the endpoints of an answer's ``producers``; those of no use are noted in *left_out* (DISC-6).

    Raises HTTPResponseError where it is no list, or holds entries and none is of use.
    """
    listed = data.get("producers") if isinstance(data, Mapping) else None
    if listed is None and isinstance(data, Mapping) and "producers" in data:
        listed = []
    if not isinstance(listed, list):
        raise HTTPResponseError("lookup", "the answer has no list of producers")
    endpoints = usable(listed, node_endpoint, left_out)
    if listed and not endpoints:
        raise HTTPResponseError("lookup", next(iter(left_out)))
    return endpoints


def usable(entries: Iterable[Any], read: Callable[[Any], Endpoint], left_out: dict[str, None]) -> list[Endpoint]:
    """Return what *read* makes of the entries; why it raises HTTPResponseError for some is noted in *left_out*.

    Anyone may register an nsqd that nobody can use; the others must be found all the same.
    """
    endpoints = []
    for entry in entries:
        try:
            endpoints.append(read(entry))
        except HTTPResponseError as error:
            if len(left_out) < MAX_LEFT_OUT:
                left_out[error.why] = None
    return endpoints


def node_endpoint(node: Any, partition: int | None = None) -> Endpoint:
    """Return the endpoint of a producer.  Ports may be strings of digits.  Raises HTTPResponseError."""
    host = node.get("broadcast_address") or node.get("address") if isinstance(node, Mapping) else None
    port = node.get("tcp_port") if isinstance(node, Mapping) else None
    if isinstance(port, str) and port.isascii() and port.isdigit():
        port = int(port)
    valid_host = isinstance(host, str) and len(host) <= 255 and is_host_name(host) and " " not in host
    if not valid_host or isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        shown = f"{_SHORT.repr(host)}, port {_SHORT.repr(port)}" if isinstance(node, Mapping) else _SHORT.repr(node)
        raise HTTPResponseError("lookup", printable(f"a producer without a usable address: {shown}"))
    return Endpoint(str(host), port, partition)
