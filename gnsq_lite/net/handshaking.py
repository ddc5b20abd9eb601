"""The handshake over a stream: sends what :mod:`gnsq_lite.wire.handshake` asks for, and reads frame by frame (CONN-1).

The loop's connection and the blocking one call it, each with its own stream.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gnsq_lite.errors import ProtocolError
from gnsq_lite.options import ConnectionOptions, TLSOptions
from gnsq_lite.wire.compress import Codec, make_codec
from gnsq_lite.wire.frames import Frame, FrameDecoder
from gnsq_lite.wire.handshake import AuthReply, Done, Handshake, Send, StartCompression, StartTLS
from gnsq_lite.wire.identify import Negotiated, build_identify

log = logging.getLogger("gnsq_lite.net")

#: Largest frame of a handshake, and most bytes that one read of it decompresses to.
HANDSHAKE_BYTES = 1024 * 1024
#: Most frames of a handshake; without heartbeats nsqd sends five.
_HANDSHAKE_FRAMES = 1000


class ByteStream(Protocol):
    """A connected stream.  Each method may wait; the caller bounds the time."""

    def read(self) -> bytes:
        """Return the next bytes, decrypted, at least one.  Raises NSQConnectionError."""

    def write(self, data: bytes) -> None:
        """Send *data*.  Raises NSQConnectionError."""

    def start_tls(self, tls: TLSOptions | ssl.SSLContext, host: str, early: bytes) -> bytes:
        """Do the TLS handshake, given *early*, the bytes read after the last plain frame; return plain text if any.

        Raises TLSError, CertificateError.
        """


@dataclass(slots=True)
class Opened:
    """What the handshake has settled."""

    codec: Codec | None = None
    negotiated: Negotiated | None = None
    auth_reply: AuthReply | None = None


class _Reader:
    """Reads the frames of a handshake one by one, and reads no meaning into the bytes after one (SEC-3)."""

    def __init__(self, stream: ByteStream, decoder: FrameDecoder[Any]) -> None:
        self._stream, self._decoder = stream, decoder
        self.codec: Codec | None = None
        #: Plain bytes to decode before the next read.
        self.early = b""

    def next_frame(self) -> Frame:
        frame = self._decoder.feed_one(self.early)
        while frame is None:
            frame = self._decoder.feed_one(self.decompress(self._stream.read()))
        self.early = b""
        return frame

    def decompress(self, data: bytes) -> bytes:
        """Return the plain bytes of a read, which holds an answer or two.  Raises ProtocolError for a bomb."""
        if self.codec is None:
            return data
        plain = b""
        for piece in self.codec.decompress(data):
            plain += piece
            if len(plain) > HANDSHAKE_BYTES:
                raise ProtocolError(f"a read of the handshake decompresses to more than {HANDSHAKE_BYTES} bytes")
        return plain


def shake_hands(
    stream: ByteStream,
    decoder: FrameDecoder[Any],
    options: ConnectionOptions,
    host: str,
    address: str,
    *,
    identify_extra: Mapping[str, Any] | None = None,
    check_server: Callable[[str, str], None] | None = None,
    subscribe: bytes | None = None,
    heartbeats: bool = True,
) -> Opened:
    """Shake hands, up to the OK of SUB; the caller bounds the time.

    Args:
        decoder: Keeps the bytes after the last frame.
        host: The host to verify with TLS.
        address: ``host:port`` of the nsqd, for errors.
        check_server: As of :class:`~gnsq_lite.wire.handshake.Handshake`.
        heartbeats: False asks nsqd for none, which it grants to producers.
    Raises:
        NSQConnectionError, NsqdError, ProtocolError: the handshake has failed.
    """
    if identify_extra:
        options = replace(options, extra_identify={**options.extra_identify, **identify_extra})
    identify = build_identify(options, hostname_default=socket.gethostname(), heartbeats=heartbeats)
    handshake = Handshake(options, address, identify=identify, subscribe=subscribe, check_server=check_server)
    reader, opened = _Reader(stream, decoder), Opened()
    stream.write(handshake.start())
    for _ in range(_HANDSHAKE_FRAMES):
        frame = reader.next_frame()
        step = handshake.receive(frame)
        if isinstance(step, Send):
            stream.write(step.data if reader.codec is None else reader.codec.compress(step.data))
        elif isinstance(step, StartTLS):
            reader.early = stream.start_tls(options.tls, host, decoder.take_pending())  # type: ignore[arg-type]
        elif isinstance(step, StartCompression):
            reader.codec = make_codec(step.algorithm, step.level)
            reader.early = reader.decompress(decoder.take_pending())
        elif isinstance(step, Done):
            break
    else:
        raise ProtocolError(f"the handshake did not end within {_HANDSHAKE_FRAMES} frames")
    for warning in handshake.warnings:
        log.warning("%s: %s", address, warning)
    opened.codec, opened.negotiated, opened.auth_reply = reader.codec, handshake.negotiated, handshake.auth_reply
    return opened
