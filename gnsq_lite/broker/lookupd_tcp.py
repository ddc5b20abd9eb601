"""nsqlookupd's TCP protocol, both ends: real nsqds can register with the broker, and its nsqds with a real nsqlookupd.

Source: nsqlookupd/lookup_protocol_v1.go, nsqd/lookup.go @v1.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

import gevent
import gevent.queue
import gevent.socket

from gnsq_lite.broker import gojson
from gnsq_lite.broker.registrations import Peer, RegistrationDB
from gnsq_lite.broker.tcp import AcceptedConnection
from gnsq_lite.broker.topics import is_valid_name

_INT = Struct(">i")
_LONGEST = 1 << 20
_PEER_FIELDS = {
    "remote_address": "str",
    "hostname": "str",
    "broadcast_address": "str",
    "tcp_port": "int",
    "http_port": "int",
    "version": "str",
}
_PING_INTERVAL = 15.0
_RETRY_INTERVAL = 1.0


class _Refused(Exception):
    """A fatal error: its text is sent, then the connection closes."""


class LookupdClient:
    """One connection to the broker's nsqlookupd: a :class:`~gnsq_lite.broker.tcp.ByteReceiver`.

    *introduce* returns what the nsqlookupd says of itself.
    """

    def __init__(
        self, connection: AcceptedConnection, db: RegistrationDB, introduce: Callable[[], dict[str, Any]]
    ) -> None:
        self._connection, self._db, self._introduce = connection, db, introduce
        self._buffer = b""
        self._greeted = False
        self._identifying = False
        self._peer: Peer | None = None

    # -- bytes ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer and answer the commands in them."""
        self._buffer += data
        try:
            while self._step():
                pass
        except _Refused as refusal:
            self._answer(str(refusal).encode("utf-8", "surrogateescape"))
            self._connection.close()

    def _step(self) -> bool:
        if not self._greeted:
            return self._magic()
        if self._identifying:
            return self._identify()
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            if len(self._buffer) > _LONGEST:
                self._connection.drop()
            return False
        self._buffer = rest
        words = line.strip().decode("utf-8", "surrogateescape").split(" ")
        if words[0] == "IDENTIFY":
            if self._peer is not None:
                raise _Refused("E_INVALID cannot IDENTIFY again")
            self._identifying = True
        elif words[0] == "PING":
            if self._peer is not None:
                self._peer.last_update = self._db.clock.now()
            self._answer(b"OK")
        elif words[0] in ("REGISTER", "UNREGISTER"):
            self._registration(words)
        else:
            raise _Refused(f"E_INVALID invalid command {words[0]}")
        return True

    def _magic(self) -> bool:
        if len(self._buffer) < 4:
            return False
        magic, self._buffer = self._buffer[:4], self._buffer[4:]
        if magic != b"  V1":
            self._answer(b"E_BAD_PROTOCOL")
            self._connection.refuse(len(self._buffer))
            return False
        self._greeted = True
        return True

    def _identify(self) -> bool:
        if len(self._buffer) < 4:
            return False
        (size,) = _INT.unpack_from(self._buffer)
        if not 0 <= size <= _LONGEST:
            raise _Refused("E_BAD_BODY IDENTIFY failed to read body")
        if len(self._buffer) < 4 + size:
            return False
        body, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
        self._identifying = False
        try:
            data = gojson.decode(body, _PEER_FIELDS)
        except gojson.NotDecodable:
            raise _Refused("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not (data["broadcast_address"] and data["tcp_port"] and data["http_port"] and data["version"]):
            raise _Refused("E_BAD_BODY IDENTIFY missing fields")
        address = self._connection.remote_address
        self._peer = Peer(id=address, **{**data, "remote_address": address})
        self._db.introduce(self._peer)
        self._answer(gojson.encode(self._introduce()))
        return True

    def _registration(self, words: list[str]) -> None:
        verb = words[0]
        if self._peer is None:
            raise _Refused("E_INVALID client must IDENTIFY")
        if len(words) < 2:
            raise _Refused(f"E_INVALID {verb} insufficient number of params")
        topic, channel = words[1], words[2] if len(words) > 2 else ""
        if not is_valid_name(topic):
            raise _Refused(f"E_BAD_TOPIC {verb} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel):
            raise _Refused(f"E_BAD_CHANNEL {verb} channel name '{channel}' is not valid")
        if verb == "REGISTER":
            self._db.register(self._peer, topic, channel)
        else:
            self._db.unregister(self._peer, topic, channel)
        self._answer(b"OK")

    def _answer(self, data: bytes) -> None:
        self._connection.send(_INT.pack(len(data)) + data)

    def receive_end(self) -> None:
        """The peer has closed its side."""
        if self._identifying:
            what = "body size" if len(self._buffer) < 4 else "body"
            self._answer(f"E_BAD_BODY IDENTIFY failed to read {what}".encode())
        self._connection.close()
        self.lost()

    def sent(self) -> None:
        """Nothing waits for it."""

    def lost(self) -> None:
        """The connection is gone, and with it what the peer registered."""
        if self._peer is not None:
            self._db.forget(self._peer)
            self._peer = None


class RemotePeer:
    """One nsqd of the broker as a client of an nsqlookupd elsewhere: an Observer with a connection of its own.

    Channels that such an nsqlookupd knows are not created with a new topic, as nsqd would do: asking would wait.
    """

    def __init__(
        self, address: str, introduction: dict[str, Any], known: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._introduction = introduction
        self._known = known
        self._commands: gevent.queue.Queue[bytes] = gevent.queue.Queue()
        self._greenlet = gevent.spawn(self._run)

    def registered(self, topic: str, channel: str | None) -> None:
        """Tell of a new topic or channel."""
        self._commands.put(_line("REGISTER", topic, channel))

    def unregistered(self, topic: str, channel: str | None) -> None:
        """Tell of a deleted one."""
        self._commands.put(_line("UNREGISTER", topic, channel))

    def channels_of(self, topic: str) -> Iterable[str]:
        """Return nothing: see the class."""
        return ()

    def ping(self) -> None:
        """Nothing: the connection pings by itself."""

    def leave(self) -> None:
        """End the connection, and with it the registrations."""
        self._greenlet.kill()

    def _run(self) -> None:
        while True:
            try:
                with gevent.socket.create_connection(self._address, 1.0) as sock:
                    sock.settimeout(1.0)
                    self._serve(sock)
            except (OSError, EOFError):
                gevent.sleep(_RETRY_INTERVAL)

    def _serve(self, sock: Any) -> None:
        while not self._commands.empty():
            self._commands.get()  # what is known now is sent whole
        body = gojson.encode(self._introduction)
        sock.sendall(b"  V1IDENTIFY\n" + _INT.pack(len(body)) + body)
        _read_answer(sock)
        for topic, channel in self._known():
            sock.sendall(_line("REGISTER", topic, channel))
            _read_answer(sock)
        while True:
            try:
                command = self._commands.get(timeout=_PING_INTERVAL)
            except gevent.queue.Empty:
                command = b"PING\n"
            sock.sendall(command)
            _read_answer(sock)


def _line(verb: str, topic: str, channel: str | None) -> bytes:
    return " ".join([verb, topic, channel] if channel else [verb, topic]).encode() + b"\n"


def _read_answer(sock: Any) -> bytes:
    (size,) = _INT.unpack(_read_exactly(sock, 4))
    if not 0 <= size <= _LONGEST:
        raise OSError(f"an answer of {size} bytes")
    return _read_exactly(sock, size)


def _read_exactly(sock: Any, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
