"""The handshake (CONN-1): commands and responses before the first message or publish.

::

    magic, IDENTIFY [, TLS] [, compression] [, AUTH if nsqd requires it] [, SUB of a Reader]

A :class:`Handshake` does no I/O.  The connection passes it each frame and executes the step that it returns: send,
start TLS, start a codec, or done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gnsq_lite.errors import AuthFirstError, ProtocolError, TLSNotGranted, error_for, printable
from gnsq_lite.options import Compression, ConnectionOptions
from gnsq_lite.wire import commands
from gnsq_lite.wire.constants import FRAME_ERROR, FRAME_RESPONSE, HEARTBEAT, MAGIC_V2, OK
from gnsq_lite.wire.frames import Frame
from gnsq_lite.wire.identify import Negotiated, load_object, parse_identify_reply


@dataclass(frozen=True, slots=True)
class Send:
    """Write the bytes, then read the next frame.  The repr hides them, because AUTH contains the secret."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartTLS:
    """Do the TLS handshake, then read the next frame through TLS (SEC-1).

    Reject bytes that follow this frame: nsqd sends none before the client's first TLS record.
    """


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Pass all bytes after this frame through the codec, also bytes already read; then read the next frame."""

    algorithm: Compression
    #: DEFLATE level of the bytes that the client sends.
    level: int


@dataclass(frozen=True, slots=True)
class Done:
    """The handshake is over."""


Step: TypeAlias = Send | StartTLS | StartCompression | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthReply:
    """nsqd's response to AUTH (SEC-4)."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


class Handshake:
    """The handshake of one connection.

    Args:
        options: The requested features; *identify* must be built from the same options.
        address: ``host:port`` of the nsqd, for errors.
        identify: IDENTIFY's JSON.
        subscribe: The SUB command, or None for a connection that only publishes.
        check_server: Called with nsqd's version and address; raises to reject the nsqd.
    """

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
        self._steps = self._run()
        self.negotiated: Negotiated | None = None
        self.auth_reply: AuthReply | None = None
        #: Log lines about requested features that nsqd did not grant, except TLS (NEG-4).
        self.warnings: list[str] = []

    def start(self) -> bytes:
        """Return the first bytes to send: magic and IDENTIFY (WIRE-1).  Call it once."""
        first: Any = next(self._steps)
        return bytes(first.data)

    def receive(self, frame: Frame) -> Step:
        """Process the next frame of the handshake; return the next step.

        Raises:
            NsqdError: nsqd sent an error frame; the handshake has failed.
            TLSNotGranted: TLS was requested but not granted; only IDENTIFY was sent (NEG-4).
            AuthFirstError: nsqd requires AUTH and no secret is configured; no SUB was sent.
            WrongDialectError: *check_server* rejects the nsqd; only IDENTIFY was sent.
            ProtocolError: the peer does not speak the protocol.
        """
        kind, body = frame
        if kind == FRAME_ERROR:
            raise error_for(body, self.address)
        if kind != FRAME_RESPONSE:
            raise self._unexpected(frame, "a response")
        if body == HEARTBEAT:  # nsqd sends heartbeats from the start, also during the handshake
            return Send(commands.NOP)
        return self._steps.send(body)

    def _run(self) -> Generator[Step, bytes, None]:
        """Yield each step; receive the body of nsqd's response to it."""
        negotiated = self._identified((yield Send(MAGIC_V2 + commands.identify(self._identify))))
        if negotiated.tls_v1:
            self._check_ok((yield StartTLS()), "TLS")
        algorithm: Compression | None = "snappy" if negotiated.snappy else "deflate" if negotiated.deflate else None
        if algorithm is not None:
            level = negotiated.deflate_level or self._options.deflate_level
            self._check_ok((yield StartCompression(algorithm, level)), algorithm)
        if negotiated.auth_required:
            self.auth_reply = self._parse_auth((yield Send(commands.auth(self._secret()))))
        if self._subscribe is not None:
            self._check_ok((yield Send(self._subscribe)), "SUB")
        yield Done()

    def _identified(self, body: bytes) -> Negotiated:
        try:
            negotiated = self.negotiated = parse_identify_reply(body, self._options)
        except ProtocolError as error:
            error.address = self.address
            raise
        if self._check_server is not None:
            self._check_server(negotiated.version, self.address)
        if self._options.tls is not None and not negotiated.tls_v1:
            why = "TLS was requested, but this nsqd runs without --tls-cert; only IDENTIFY was sent"
            raise TLSNotGranted(self.address, why)
        self.warnings = not_granted(self._options, negotiated)
        if self._subscribe is not None and negotiated.max_rdy_count < 1:
            self.warnings.append("nsqd grants max_rdy_count 0, so it delivers no messages: check its --max-rdy-count")
        return negotiated

    def _secret(self) -> bytes:
        secret = self._options.auth_secret
        if secret is None:
            why = "this nsqd requires AUTH; set auth_secret (only IDENTIFY was sent)"
            raise AuthFirstError("E_AUTH_FIRST", why, self.address)
        return secret.encode("utf-8") if isinstance(secret, str) else secret

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

    def _check_ok(self, body: bytes, request: str) -> None:
        if body != OK:
            raise self._unexpected(Frame(FRAME_RESPONSE, body), f"OK to {request}")

    def _unexpected(self, frame: Frame, wanted: str) -> ProtocolError:
        shown = repr(frame.body[:60]) + ("..." if len(frame.body) > 60 else "")
        error = ProtocolError(f"expected {wanted} in the handshake; received frame type {frame.kind}: {shown}")
        error.address = self.address
        return error


def not_granted(options: ConnectionOptions, negotiated: Negotiated) -> list[str]:
    """Return a log line for each requested setting that nsqd did not grant, except TLS (NEG-4).

    A server that does not negotiate grants no setting.
    """
    lines = []
    compression = options.compression
    if compression is not None and not getattr(negotiated, compression):
        lines.append(f"{compression} was requested, but nsqd did not grant it; the connection is not compressed")
    requested: dict[str, Any] = {"sample_rate": options.sample_rate or None, "msg_timeout": options.msg_timeout}
    if negotiated.deflate:
        requested["deflate_level"] = options.deflate_level
    for name, wanted in requested.items():
        got = getattr(negotiated, name)
        if wanted is not None and (not negotiated.negotiated or abs(got - wanted) >= 0.001):
            used = got if negotiated.negotiated else "its own setting, because it does not negotiate"
            lines.append(f"{name}={wanted} was requested; nsqd uses {used}")
    return lines


def _text(value: object) -> str:
    return printable(value[:256]) if isinstance(value, str) else ""
