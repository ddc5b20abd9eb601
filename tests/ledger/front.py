"""TLS between a client and the proxy, and none between the proxy and nsqd, so that the witness can read the bytes.

nsqd begins TLS within a connection: IDENTIFY asks for it, the reply grants it, the handshake follows, then an OK.  The
front asks nsqd for no TLS, grants it itself, and goes through the handshake with a certificate of the tests.
"""

from __future__ import annotations

import json
import ssl
import struct
from typing import Any

from gevent import monkey

from tests.certs import Certificates
from tests.native import native_lock
from tests.proxy import Tap

_sleep: Any = monkey.get_original("time", "sleep")
GREETING = b"  V2IDENTIFY\n"


class TLSFront:
    """A front of :class:`tests.proxy.Proxy`."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.server.cert, certificates.server.key)
        #: While true, a handshake stops after the client's first bytes.
        self.stalling = False
        #: Bytes that a client receives instead of the handshake, before the connection is closed.
        self.retort = b""
        #: Handshakes that were begun while *stalling*.
        self.stalled = 0

    def __call__(self, client: Any, server: Any, tap: Tap | None) -> TLSSide:
        """Go through IDENTIFY and the handshake; raises OSError."""
        if _exactly(client, len(GREETING)) != GREETING:
            raise OSError("it does not begin with IDENTIFY")
        wanted = json.loads(_exactly(client, *_size(client)))
        if not wanted["tls_v1"]:
            raise OSError("a client that was to speak TLS asks for none")
        body = json.dumps({**wanted, "tls_v1": False}).encode()
        up = GREETING + struct.pack(">I", len(body)) + body
        if tap is not None:
            tap.up(up)
        server.sendall(up)
        reply = _exactly(server, *_size(server))
        down = struct.pack(">I", len(reply)) + reply
        if tap is not None:
            tap.down(down)
            tap.passed(len(down))
        granted = reply[:4] + json.dumps({**json.loads(reply[4:]), "tls_v1": True}).encode()
        client.sendall(struct.pack(">I", len(granted)) + granted)
        side = TLSSide(client, self._context)
        side.shake_hands(self._stall)
        side.sendall(struct.pack(">II", 6, 0) + b"OK")
        return side

    def let_go(self) -> None:
        """Let the stalled handshakes go on, or send :attr:`retort` instead."""
        self.stalling = False

    def _stall(self, client: Any) -> None:
        if self.stalling:
            self.stalled += 1
            while self.stalling:
                _sleep(0.002)
            if self.retort:
                client.sendall(self.retort)
                raise OSError("that was all")


class TLSSide:
    """The server's side of TLS over a connected socket; one thread may receive while others send."""

    def __init__(self, sock: Any, context: Any) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._lock, self._sending = native_lock(), native_lock()

    def shake_hands(self, heard: Any) -> None:
        """Do the handshake.  *heard* is called with the socket after the client's first bytes."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._take()
                heard(self._sock)
        self._flush()

    def recv(self, size: int) -> bytes:
        """Return what came, b"" at the end."""
        while True:
            with self._lock:
                try:
                    return bytes(self._tls.read(size))
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    return b""
            self._take()

    def sendall(self, data: bytes) -> None:
        """Send it all."""
        with self._sending:
            with self._lock:
                if data:
                    self._tls.write(data)
            self._flush()

    def _take(self) -> None:
        found = self._sock.recv(65536)
        with self._lock:
            if found:
                self._incoming.write(found)
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._sock.sendall(self._outgoing.read())

    def shutdown(self, how: int) -> None:
        """As a socket's: without a word of TLS, as when a process ends."""
        self._sock.shutdown(how)


def _exactly(sock: Any, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = sock.recv(count - len(found))
        if not more:
            raise OSError("it ended")
        found += more
    return found


def _size(sock: Any) -> tuple[int]:
    found: tuple[int] = struct.unpack(">I", _exactly(sock, 4))
    return found
