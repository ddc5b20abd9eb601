"""Differences between plain NSQ and Youzan's NSQ in lookups, subscribing, publishing and decoding.

Reader and Writer use only the interfaces :class:`Dialect` and :class:`Router`.  A dialect does no I/O: it encodes
requests into bytes and decodes replies into values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import quote

from gnsq_lite.errors import (
    HTTPResponseError,
    NotSent,
    NsqdError,
    NSQError,
    OptionError,
    ProtocolError,
    WrongDialectError,
)
from gnsq_lite.message import Message
from gnsq_lite.options import Address, format_address, is_host_name
from gnsq_lite.text import printable
from gnsq_lite.wire import commands

Role = Literal["read", "write"]

#: Part of the version string of each nsqd of Youzan, and of no other nsqd.
VERSION_MARK = "-HA."

#: Makes a message from (connection, timestamp_ns, attempts, id, rest of the frame).
MessageFactory: TypeAlias = Callable[[Any, int, int, bytes, bytes], Message]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An nsqd and, in Youzan's dialect, one partition on it."""

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


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """What nsqd returns for a traced publish to Youzan's NSQ (YZ-9).

    ``partition`` is 0 for a standalone server.  For a batch, nsqd returns the ids and offset of the first message, and
    the size of all messages.  If the Writer split the batch, ``rest`` has the receipts of the second and all later
    parts.
    """

    internal_id: int
    trace_id: int
    queue_offset: int
    raw_size: int
    partition: int
    rest: tuple[PublishReceipt, ...] = ()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Reply of an nsqlookupd about a topic.

    ``meta`` is for the dialect's router.  ``left_out`` has a printable error for each unusable entry of the reply, but
    at most :data:`MAX_LEFT_OUT` errors.
    """

    endpoints: tuple[Endpoint, ...]
    meta: Any = None
    left_out: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class PublishRequest:
    """Arguments of one publish.  The Writer checks topic and bodies, and :meth:`Dialect.check` the other fields."""

    topic: str
    bodies: Sequence[bytes]
    batch: bool = False
    defer: float = 0.0
    trace_id: int | None = None
    #: Headers of the message.  In a batch, ``headers`` and ``trace_ids`` have one item for each body.
    headers: Any = None
    trace_ids: Sequence[int] | None = None
    #: One item for each body: its encoded headers, which include the trace id if it has one.
    encoded_headers: Sequence[bytes] | None = None


class RoutedPublish(Protocol):
    """The part of a publish without an outcome that a :class:`Router` uses."""

    topic: str
    batch: bool
    #: Key that determines the partition, or the partition; None: not given.
    key: bytes | None
    partition: int | None
    #: All other options; None if there are none.
    request: PublishRequest | None
    #: Encoded command.
    data: bytes
    #: Bytes that count against max_pending; 0 for a blocking publish.
    cost: int
    #: Sequence number among the publishes of the Writer.
    number: int
    #: Endpoint that the router chose for a publish to any partition; None: not chosen yet.
    leader: Endpoint | None

    def done(self) -> bool: ...

    def is_accepted(self) -> bool:
        """Return whether an nsqd has accepted the publish."""

    def on_outcome(self, act: Callable[[], None]) -> None:
        """Call *act* in the loop's thread when the outcome is set."""

    def as_request(self) -> PublishRequest: ...

    def command_behind(self, head: bytes) -> bytes: ...


class Lookups(Protocol):
    """Interface for a :class:`Router` that looks up one topic."""

    def poke(self) -> None:
        """Query the nsqlookupds now."""

    def answers(self) -> list[Lookup]:
        """Return the last reply of each nsqlookupd whose last query succeeded."""


class RouterHost(Protocol):
    """Interface of a Writer's core for a :class:`Router`."""

    def send_to(self, endpoint: Endpoint, publish: Any) -> bool:
        """Send a publish, or return False if *endpoint* cannot accept the publish yet."""
        # The first call for an endpoint starts to connect to the endpoint.

    def fail(self, publish: Any, error: NSQError) -> None:
        """Settle a publish with an error."""

    def look_up(self, topic: str, on_lookup: Callable[[Lookup], None], on_outage: Callable[[], None]) -> Lookups | None:
        """Start to look up *topic*, or return None without nsqlookupds.  While all fail, call *on_outage*."""

    def call_later(self, seconds: float, act: Callable[[], None]) -> Any:
        """Call *act* once, *seconds* from now; return the timer, which has ``close()``."""

    def avoids(self, endpoint: Endpoint) -> bool:
        """Return whether the endpoint is silent or unreachable.  Thread-safe."""

    def owes(self, topic: str, partition: int) -> bool:
        """Return whether publishes to a partition are unanswered.  Disconnect each silent nsqd that has some."""


class Router(Protocol):
    """Chooses the endpoint of each publish, and holds publishes that cannot be sent yet.

    Call all methods except :meth:`leader` in the loop's thread.  The router for plain NSQ inherits the method bodies.
    """

    def leader(self, publish: RoutedPublish) -> Endpoint | None:
        """Encode the command, and return its endpoint, or None if the loop must send the publish.  Thread-safe."""
        return None

    def send(self, publish: RoutedPublish) -> None:
        """Send a publish, or hold it."""

    def put_back(self, publishes: Iterable[Any], lost: Endpoint) -> None:
        """Send *publishes* again, or hold them.  The endpoint *lost* refused them or did not confirm them."""

    def look_again(self, endpoint: Endpoint) -> None:
        """Look up the topics of a silent or lost endpoint, because its partitions may have another leader."""
        return

    def on_room(self, endpoint: Endpoint) -> None:
        """Send held publishes to an endpoint that accepts publishes again."""

    def waiting(self) -> Sequence[Any]:
        """Return the held publishes."""

    def forget_done(self) -> None:
        """Drop held publishes that already have an outcome."""

    def unavailable(self, publish: RoutedPublish) -> NSQError | None:
        """Return the reason why no endpoint can accept a held publish, or None if no reason is known."""
        return None

    def not_sent(self, publish: RoutedPublish, error: NotSent) -> NotSent:
        """Add the partition to the error of a publish that timed out before it was sent."""
        return error

    def close(self) -> None:
        """Stop all lookups."""
        return


class Dialect:
    """The dialect of plain NSQ 1.x.  :class:`gnsq_lite.youzan.YouzanDialect` overrides it for Youzan's NSQ."""

    name = "nsq"
    #: Path of the request that lists the nsqlookupds of a cluster (YZ-1), or "" to use only the configured nsqlookupds.
    lookupds_path = ""
    #: Whether :meth:`router` chooses the endpoint of each publish.
    is_routed = False

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            raise OptionError(name, value, "needs Youzan's NSQ: pass dialect='youzan'")

    # -- discovery
    def lookup_path(self, topic: str, role: Role) -> str:
        """Return the path and query of the lookup request to each nsqlookupd.

        A Writer looks up all nsqds, because the first publish creates the topic (PUB-4).
        """
        return "/nodes" if role == "write" else f"/lookup?topic={quote(topic, safe='')}"

    def parse_lookup(self, topic: str, role: Role, data: Any) -> Lookup:
        """Parse the decoded JSON of a reply, without its ``data`` wrapper.  Raises HTTPResponseError.

        The endpoints are broadcast addresses and TCP ports (DISC-2).
        """
        left_out: dict[str, None] = {}
        endpoints = tuple(producers(data, left_out))
        return Lookup(endpoints, left_out=tuple(left_out))

    def named_endpoints(self, nsqds: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the endpoints from which a Reader consumes if the program gave the addresses of *nsqds*."""
        return nsqds

    def parse_lookupds(self, data: Any) -> tuple[Address, ...]:
        """Parse the reply to :attr:`lookupds_path` into HTTP addresses.  Raises HTTPResponseError."""
        return ()

    # -- connecting
    def identify_extra(self, topic: str, endpoint: Endpoint) -> Mapping[str, Any]:
        """Return additional keys for IDENTIFY."""
        return {}

    def check_server(self, version: str, address: str) -> None:
        """Raise WrongDialectError if an nsqd of this *version* has another dialect (YZ-14).

        A plain client would use only one partition of Youzan's NSQ.
        """
        if VERSION_MARK in version:
            raise WrongDialectError(address, f"this is Youzan's NSQ ({printable(version[:40])}): pass dialect='youzan'")

    # -- consuming
    def subscribe(self, topic: str, channel: str, endpoint: Endpoint) -> bytes:
        """Return the SUB command."""
        return commands.subscribe(topic, channel)

    def message_factory(self, topic: str, endpoint: Endpoint, negotiated: Any) -> MessageFactory:
        """Return the factory for messages of a connection."""
        return Message

    def is_ordered(self, topic: str) -> bool:
        """Return whether *topic* is consumed in order, with one message per partition at a time (YZ-6)."""
        return False

    def calls_for_lookup(self, error: NSQError) -> bool:
        """Return whether a Reader must look up the leader at once after *error* ended a connection (YZ-12, YZ-18)."""
        return False

    # -- publishing
    def router(self, host: RouterHost, nsqds: Sequence[Endpoint]) -> Router | None:
        """Make the router that chooses the endpoint of each publish, or return None for round robin over the nsqds."""
        return None

    @property
    def batch_extra(self) -> int:
        """Bytes besides the body that nsqd counts in each message when it applies ``--max-msg-size``."""
        return 0

    def check_place(self, key: bytes | None, partition: int | None) -> None:
        """Check the key or the partition of a publish.  Raises OptionError."""
        _refuse({"key": key, "partition": partition})

    def check(self, request: PublishRequest, most: int) -> PublishRequest:
        """Check *request*, and return it with encoded headers.  *most* is the maximum size of a message.

        Raises OptionError or MessageTooLarge for a request that nsqd would refuse for any topic.
        """
        _refuse({name: getattr(request, name) for name in YOUZAN_ONLY})  # no field is ignored silently
        return request

    def encode(self, request: PublishRequest, endpoint: Endpoint, route: Lookup | None) -> bytes:
        """Encode the command of a checked request."""
        if request.batch:
            return commands.multipublish(request.topic, request.bodies)
        if request.defer:
            return commands.defer_publish(request.topic, request.bodies[0], request.defer)
        return commands.publish(request.topic, request.bodies[0])

    def receipt(self, data: bytes) -> Any:
        """Return the receipt in *data*, a reply that is not just OK.  Raises ProtocolError if *data* is no receipt."""
        raise ProtocolError(f"not an OK: {data[:50]!r}")

    def should_reroute(self, error: NsqdError) -> bool:
        """Return whether to look up the topic after *error*, and then publish to the new leader."""
        return False


#: Fields of a request that only Youzan's NSQ supports.
YOUZAN_ONLY = ("trace_id", "headers", "trace_ids")

#: Maximum unusable entries of a reply that are reported, because any client of nsqlookupd may register entries.
MAX_LEFT_OUT = 100

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 100


def _refuse(options: Mapping[str, object]) -> None:
    """Raise OptionError for the first of *options* that is given."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(name, value, "needs Youzan's NSQ; this Writer's dialect is 'nsq'")


def producers(data: Any, left_out: dict[str, None]) -> list[Endpoint]:
    """Return the endpoints of a reply's ``producers``.  Add errors of unusable entries to *left_out* (DISC-6).

    Raises HTTPResponseError if ``producers`` is not a list, or if all its entries are unusable.
    """
    listed = data.get("producers") if isinstance(data, Mapping) else None
    if listed is None and isinstance(data, Mapping) and "producers" in data:
        listed = []
    if not isinstance(listed, list):
        raise HTTPResponseError("lookup", "the reply has no list of producers")
    endpoints = usable(listed, node_endpoint, left_out)
    if listed and not endpoints:
        raise HTTPResponseError("lookup", next(iter(left_out)))
    return endpoints


def usable(entries: Iterable[Any], read: Callable[[Any], Endpoint], left_out: dict[str, None]) -> list[Endpoint]:
    """Convert entries with *read*.  If *read* raises HTTPResponseError, add its text to *left_out* instead.

    Any client of nsqlookupd may register an unusable nsqd, and the other nsqds must still be found.
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
    """Convert a producer, whose port may be a string of digits, to an endpoint.  Raises HTTPResponseError."""
    host = node.get("broadcast_address") or node.get("address") if isinstance(node, Mapping) else None
    port = node.get("tcp_port") if isinstance(node, Mapping) else None
    if isinstance(port, str) and port.isascii() and port.isdigit():
        port = int(port)
    valid_host = isinstance(host, str) and len(host) <= 255 and is_host_name(host) and " " not in host
    if not valid_host or isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        shown = f"{_SHORT.repr(host)}, port {_SHORT.repr(port)}" if isinstance(node, Mapping) else _SHORT.repr(node)
        raise HTTPResponseError("lookup", printable(f"a producer without a usable address: {shown}"))
    return Endpoint(str(host), port, partition)
