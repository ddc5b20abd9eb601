"""The handshake as a table, and what walks it (CONN-1).

::

    NEW -> IDENTIFYING [-> SECURING] [-> COMPRESSING] [-> AUTHENTICATING] -> READY                  (to publish)
                                                                          -> SUBSCRIBING -> SUBSCRIBED

A :class:`Handshake` does no I/O.  It is given each frame of the handshake and says what to do next: send, start TLS,
start a codec, or nothing more.  What comes after the handshake, its end included, is the connection's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from gnsq_lite.errors import (
    AuthFirstError,
    ProtocolError,
    TLSNotGranted,
    error_for,
    printable,
)
from gnsq_lite.options import Compression, ConnectionOptions
from gnsq_lite.wire import commands
from gnsq_lite.wire.constants import FRAME_ERROR, FRAME_RESPONSE, HEARTBEAT, MAGIC_V2, OK
from gnsq_lite.wire.frames import Frame
from gnsq_lite.wire.identify import Negotiated, load_object, parse_identify_reply


class State(enum.Enum):
    """Where a connection is."""

    NEW = "new"
    IDENTIFYING = "identifying"
    SECURING = "securing"
    COMPRESSING = "compressing"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    SUBSCRIBING = "subscribing"
    SUBSCRIBED = "subscribed"


class Event(enum.Enum):
    """What moves it."""

    START = "magic and IDENTIFY were sent"
    TLS_GRANTED = "the reply to IDENTIFY grants TLS"
    COMPRESSION_GRANTED = "it grants a codec, and TLS is done or was not asked for"
    AUTH_SENT = "AUTH was sent"
    SUB_SENT = "SUB was sent"
    HANDSHAKE_DONE = "there is nothing to subscribe to"
    SUB_ACCEPTED = "SUB was answered with OK"


_AFTER_UPGRADES: Final = {
    Event.AUTH_SENT: State.AUTHENTICATING,
    Event.SUB_SENT: State.SUBSCRIBING,
    Event.HANDSHAKE_DONE: State.READY,
}

#: The whole machine: what is not listed cannot happen.
TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.NEW: {Event.START: State.IDENTIFYING},
        State.IDENTIFYING: {
            Event.TLS_GRANTED: State.SECURING,
            Event.COMPRESSION_GRANTED: State.COMPRESSING,
            **_AFTER_UPGRADES,
        },
        State.SECURING: {Event.COMPRESSION_GRANTED: State.COMPRESSING, **_AFTER_UPGRADES},
        State.COMPRESSING: _AFTER_UPGRADES,
        State.AUTHENTICATING: {Event.SUB_SENT: State.SUBSCRIBING, Event.HANDSHAKE_DONE: State.READY},
        State.READY: {},
        State.SUBSCRIBING: {Event.SUB_ACCEPTED: State.SUBSCRIBED},
        State.SUBSCRIBED: {},
    }
)

_HANDSHAKE: Final = frozenset(
    {State.IDENTIFYING, State.SECURING, State.COMPRESSING, State.AUTHENTICATING, State.SUBSCRIBING}
)


# -- what to do next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes, then read the next frame.  Its repr hides them: one of them is the secret."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Shake hands for TLS, then read the next frame through it (SEC-1).

    Bytes that came after this frame are not nsqd's: it waits for the client's first TLS record.  Refuse them.
    """


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Pass all further bytes, those that came with this frame included, through the codec; read the next frame."""

    algorithm: Compression
    #: Of this client's own DEFLATE stream.
    level: int


@dataclass(frozen=True, slots=True)
class Done:
    """The handshake is over; the state is READY or SUBSCRIBED."""


Step: TypeAlias = Send | StartTLS | StartCompression | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthReply:
    """What nsqd says to AUTH (SEC-4)."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


class Handshake:
    """The handshake of one connection, and how far it is.

    Args:
        options: What was asked for; must be what *identify* was built from.
        address: ``host:port`` of the nsqd, for errors.
        identify: IDENTIFY's JSON.
        subscribe: The SUB command, or None for a connection that only publishes.
        check_server: Called with nsqd's version and address; raises if nsqd is not to be used.
    """

    __slots__ = (
        *("_check_server", "_identify", "_options", "_subscribe"),
        *("address", "auth_reply", "negotiated", "state", "warnings"),
    )

    def __init__(
        self,
        options: ConnectionOptions,
        address: str,
        *,
        identify: bytes,
        subscribe: bytes | None,
        check_server: Callable[[str, str], None] | None = None,
    ) -> None:
        self._options, self._identify, self._subscribe = options, identify, subscribe
        self._check_server, self.address = check_server, address
        self.state = State.NEW
        self.negotiated: Negotiated | None = None
        self.auth_reply: AuthReply | None = None
        #: What was asked for and not granted, TLS apart (NEG-4); one line each, for the log.
        self.warnings: list[str] = []

    def __repr__(self) -> str:
        return f"<Handshake {self.address} {self.state.name}>"

    def start(self) -> bytes:
        """Return the first bytes to send: magic and IDENTIFY (WIRE-1).  Raises ProtocolError when called again."""
        self._move(Event.START)
        return MAGIC_V2 + commands.identify(self._identify)

    def receive(self, frame: Frame) -> Step:
        """Take the next frame of the handshake; return what to do.

        Raises:
            NsqdError: nsqd sent an error frame, whatever its class: the handshake has failed.
            TLSNotGranted: TLS was asked for and is not on; nothing but IDENTIFY was sent (NEG-4).
            AuthFirstError: nsqd requires AUTH and no secret is configured; no SUB was sent.
            WrongDialectError: *check_server* refuses nsqd; nothing but IDENTIFY was sent.
            ProtocolError: the peer does not speak the protocol; or the handshake has not started or is over.
        """
        if self.state not in _HANDSHAKE:
            raise self._misused("receive")
        kind, body = frame
        if kind == FRAME_ERROR:
            raise error_for(body, self.address)
        if kind != FRAME_RESPONSE:
            raise self._unexpected(frame, "a response")
        if body == HEARTBEAT:  # nsqd's ticker runs from the start; it disturbs nothing
            return Send(commands.NOP)
        if self.state is State.IDENTIFYING:
            return self._identified(body)
        if self.state is State.AUTHENTICATING:
            self.auth_reply = self._parse_auth(body)
            return self._subscribe_or_done()
        if body != OK:
            raise self._unexpected(frame, "OK")
        if self.state is State.SUBSCRIBING:
            self._move(Event.SUB_ACCEPTED)
            return Done()
        return self._after_tls() if self.state is State.SECURING else self._after_upgrades()

    # -- the steps

    def _identified(self, body: bytes) -> Step:
        try:
            negotiated = parse_identify_reply(body, self._options)
        except ProtocolError as error:
            error.address = self.address
            raise
        self.negotiated = negotiated
        if self._check_server is not None:
            self._check_server(negotiated.version, self.address)
        if self._options.tls is not None and not negotiated.tls_v1:
            why = "TLS was asked for and this nsqd does not offer it (it runs without --tls-cert); nothing was sent"
            raise TLSNotGranted(self.address, why)
        self.warnings = not_granted(self._options, negotiated)
        if self._subscribe is not None and negotiated.max_rdy_count < 1:
            self.warnings.append("nsqd grants max_rdy_count 0 and will deliver nothing: check its --max-rdy-count")
        if negotiated.tls_v1:
            self._move(Event.TLS_GRANTED)
            return StartTLS()
        return self._after_tls()

    def _after_tls(self) -> Step:
        negotiated = self._granted()
        algorithm: Literal["snappy", "deflate"] | None = None
        if negotiated.snappy:
            algorithm = "snappy"
        elif negotiated.deflate:
            algorithm = "deflate"
        if algorithm is None:
            return self._after_upgrades()
        self._move(Event.COMPRESSION_GRANTED)
        return StartCompression(algorithm, negotiated.deflate_level or self._options.deflate_level)

    def _after_upgrades(self) -> Step:
        if not self._granted().auth_required:
            return self._subscribe_or_done()
        secret = self._options.auth_secret
        if secret is None:
            why = "this nsqd requires AUTH; set auth_secret (nothing was sent but IDENTIFY)"
            raise AuthFirstError("E_AUTH_FIRST", why, self.address)
        self._move(Event.AUTH_SENT)
        return Send(commands.auth(secret.encode("utf-8") if isinstance(secret, str) else secret))

    def _subscribe_or_done(self) -> Step:
        if self._subscribe is None:
            self._move(Event.HANDSHAKE_DONE)
            return Done()
        self._move(Event.SUB_SENT)
        return Send(self._subscribe)

    def _granted(self) -> Negotiated:
        if self.negotiated is None:
            raise self._misused("receive")
        return self.negotiated

    def _parse_auth(self, body: bytes) -> AuthReply:
        try:
            values = load_object(body)
        except ProtocolError:
            raise self._unexpected(Frame(FRAME_RESPONSE, body), "the JSON reply to AUTH") from None
        count = values.get("permission_count", 0)
        return AuthReply(
            identity=_text(values.get("identity")),
            identity_url=_text(values.get("identity_url")),
            permission_count=count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0,
        )

    def _unexpected(self, frame: Frame, wanted: str) -> ProtocolError:
        shown = repr(frame.body[:60]) + ("..." if len(frame.body) > 60 else "")
        error = ProtocolError(f"{wanted} was due while {self.state.value}; frame type {frame.kind} came: {shown}")
        error.address = self.address
        return error

    def _misused(self, call: str) -> ProtocolError:
        return ProtocolError(f"{call}: not while the connection is {self.state.value}")

    def _move(self, event: Event) -> None:
        try:
            self.state = TRANSITIONS[self.state][event]
        except KeyError:
            raise self._misused(event.name.lower()) from None


def not_granted(options: ConnectionOptions, negotiated: Negotiated) -> list[str]:
    """Return a line for each thing that was asked for and is not so, TLS apart (NEG-4).

    What the server says nothing of, because it does not negotiate, counts as not granted.
    """
    lines = []
    compression = options.compression
    if compression is not None and not getattr(negotiated, compression):
        lines.append(f"{compression} was asked for and is not granted; the connection is not compressed")
    asked: dict[str, Any] = {"sample_rate": options.sample_rate or None, "msg_timeout": options.msg_timeout}
    if negotiated.deflate:
        asked["deflate_level"] = options.deflate_level
    for name, wanted in asked.items():
        got = getattr(negotiated, name)
        if wanted is not None and (not negotiated.negotiated or abs(got - wanted) >= 0.001):
            lines.append(f"{name}={wanted} was asked for; {got} holds" if negotiated.negotiated else _unknown(name))
    return lines


def _unknown(name: str) -> str:
    return f"{name} was asked for and this nsqd does not negotiate; its own setting holds"


def _text(value: object) -> str:
    return printable(value[:256]) if isinstance(value, str) else ""
