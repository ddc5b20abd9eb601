"""A client for contract tests: a blocking socket and literal bytes, without the library's code.

What it parses and how it writes commands is stated here a second time on purpose: a mistake in the library's codec
cannot hide itself.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
import zlib
from typing import Any, NamedTuple

RESPONSE, ERROR, MESSAGE = 0, 1, 2
OK = (RESPONSE, b"OK")
CLOSE_WAIT = (RESPONSE, b"CLOSE_WAIT")
HEARTBEAT = (RESPONSE, b"_heartbeat_")

#: Seconds a frame may take; far more than any server needs.
PATIENCE = 15.0


class RawMessage(NamedTuple):
    """The fields of a message frame."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Closed(Exception):
    """The server ended the connection."""


def sized(*bodies: bytes) -> bytes:
    """Return each body after its size, four bytes big-endian."""
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def pub(topic: str, body: bytes) -> bytes:
    """PUB."""
    return b"PUB %s\n" % topic.encode() + sized(body)


def mpub(topic: str, *bodies: bytes) -> bytes:
    """MPUB."""
    return b"MPUB %s\n" % topic.encode() + sized(struct.pack(">i", len(bodies)) + sized(*bodies))


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    """DPUB."""
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(body)


def sub(topic: str, channel: str) -> bytes:
    """SUB."""
    return f"SUB {topic} {channel}\n".encode()


def identify(**fields: Any) -> bytes:
    """IDENTIFY."""
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


class RawClient:
    """A connection to nsqd.  Opens with the magic bytes; closes at the end of a ``with`` block.

    *made* is a socket to connect, for those who may not have another one.
    """

    def __init__(self, address: str, magic: bytes = b"  V2", made: socket.socket | None = None) -> None:
        host, _, port = address.rpartition(":")
        if made is None:
            made = socket.create_connection((host, int(port)), timeout=PATIENCE)
        else:
            made.settimeout(PATIENCE)
            made.connect((host, int(port)))
        self.socket = made
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._inflate: Any = None
        self._deflate: Any = None
        #: Whether ``frame`` answers heartbeats and hides them.
        self.answers_heartbeats = True
        if magic:
            self.send(magic)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def reset(self) -> None:
        """Close the socket with RST, as a process that dies with unread data does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes, compressed if the connection was upgraded."""
        data = b"".join(parts)
        if self._deflate is not None:
            data = self._deflate(data)
        self.socket.sendall(data)

    def frame(self, timeout: float = PATIENCE) -> tuple[int, bytes]:
        """Return the next frame as (kind, body).  Raises TimeoutError, or Closed at the end of the stream.

        Heartbeats are answered and left out while :attr:`answers_heartbeats` is set.
        """
        limit = time.monotonic() + timeout
        while True:
            size, kind = struct.unpack(">ii", self._read(8, limit))
            body = self._read(size - 4, limit)
            if (kind, body) != HEARTBEAT or not self.answers_heartbeats:
                return kind, body
            self.send(b"NOP\n")

    def message(self, timeout: float = PATIENCE) -> RawMessage:
        """Return the next frame, which must be a message."""
        kind, body = self.frame(timeout)
        assert kind == MESSAGE, (kind, body)
        return RawMessage(*struct.unpack(">qH16s", body[:26]), body[26:])

    def error(self, timeout: float = PATIENCE) -> str:
        """Return the text of the next frame, which must be an error."""
        kind, body = self.frame(timeout)
        assert kind == ERROR, (kind, body)
        return body.decode()

    def ask(self, *parts: bytes) -> bytes:
        """Send, and return the body of the next frame, which must be a response."""
        self.send(*parts)
        kind, body = self.frame()
        assert kind == RESPONSE, (kind, body)
        return body

    def identify(self, **fields: Any) -> dict[str, Any]:
        """IDENTIFY with feature negotiation; return the reply."""
        reply: dict[str, Any] = json.loads(self.ask(identify(feature_negotiation=True, **fields)))
        return reply

    def subscribe(self, topic: str, channel: str, ready: int | None = None) -> None:
        """Send SUB, check the response, and send RDY if *ready* is given."""
        assert self.ask(sub(topic, channel)) == b"OK"
        if ready is not None:
            self.send(b"RDY %d\n" % ready)

    def finish(self, message: RawMessage) -> None:
        """FIN."""
        self.send(b"FIN " + message.id + b"\n")

    def requeue(self, message: RawMessage, delay_ms: int = 0) -> None:
        """REQ."""
        self.send(b"REQ " + message.id + b" %d\n" % delay_ms)

    def touch(self, message: RawMessage) -> None:
        """TOUCH."""
        self.send(b"TOUCH " + message.id + b"\n")

    def sync(self) -> None:
        """Return when the server has carried out all that was sent before.

        A PUB to a topic of its own is answered after them; other frames that come meanwhile must not.
        """
        assert self.ask(pub("sync.topic#ephemeral", b"x")) == b"OK"

    def is_silent(self, seconds: float) -> bool:
        """Whether no frame comes for *seconds*."""
        try:
            kind, body = self.frame(seconds)
        except TimeoutError:
            return True
        raise AssertionError(f"a frame came: {kind} {body!r}")

    def is_closed(self, timeout: float = PATIENCE) -> bool:
        """Whether the server ends the connection, with no further frame."""
        try:
            kind, body = self.frame(timeout)
        except (Closed, ConnectionError):
            return True
        except TimeoutError:
            return False
        raise AssertionError(f"a frame came: {kind} {body!r}")

    def upgrade_tls(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """Wrap the socket in TLS, after a reply that grants it."""
        assert not self._buffer
        self.socket = context.wrap_socket(self.socket, server_hostname=server_hostname)

    def upgrade_deflate(self, level: int = 6) -> None:
        """Compress with raw DEFLATE from here on."""
        packer = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._deflate = lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        self._inflate = zlib.decompressobj(-15).decompress
        self._buffer = self._inflate(self._buffer)

    def upgrade_snappy(self) -> None:
        """Compress with framed snappy from here on."""
        import snappy

        self._deflate = snappy.StreamCompressor().add_chunk
        self._inflate = snappy.StreamDecompressor().decompress
        self._buffer = self._inflate(self._buffer)

    def _read(self, count: int, limit: float) -> bytes:
        while len(self._buffer) < count:
            left = limit - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            finally:
                self.socket.settimeout(PATIENCE)
            if not data:
                raise Closed
            self._buffer += self._inflate(data) if self._inflate is not None else data
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found
