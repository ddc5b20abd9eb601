"""nsqlookupd's TCP protocol between the two programs of :mod:`tests.foreign.server`; the broker has no such port.

Only what two well-behaved programs need: IDENTIFY, REGISTER and UNREGISTER, each answered with a size and a text.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

import gevent
import gevent.queue
import gevent.socket

from gnsq_lite.broker.embedded import Broker
from gnsq_lite.broker.registrations import Peer, RegistrationDB

_INT = Struct(">i")
_FIELDS = ("hostname", "broadcast_address", "tcp_port", "http_port", "version")


def serve_nsqd(db: RegistrationDB, sock: Any, address: tuple[str, int]) -> None:
    """Keep in *db* what one nsqd registers over *sock*; forget it when the connection ends."""
    peer: Peer | None = None
    with sock, sock.makefile("rb") as stream:
        stream.read(4)  # the magic bytes
        while line := stream.readline():
            words = line.decode("ascii").split()
            if words[0] == "IDENTIFY":
                given = json.loads(stream.read(_INT.unpack(stream.read(4))[0]))
                remote = f"{address[0]}:{address[1]}"
                peer = Peer(remote, remote, **{name: given[name] for name in _FIELDS})
                db.add_peer(peer)
            elif words[0] in ("REGISTER", "UNREGISTER") and peer is not None:
                change = db.register if words[0] == "REGISTER" else db.unregister
                change(peer, words[1], words[2] if len(words) > 2 else None)
            elif peer is not None:
                db.add_peer(peer)  # PING
            sock.sendall(_INT.pack(2) + b"OK")
    if peer is not None:
        db.remove_peer(peer)


class Registration:
    """Registers one nsqd of a broker at an nsqlookupd in another process: an Observer of its topics.

    The channels that the nsqlookupd knows are not created with a new topic, as nsqd would do.
    """

    def __init__(self, address: str, broker: Broker) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._broker = broker
        self._commands: gevent.queue.Queue[bytes] = gevent.queue.Queue()
        nsqd = broker._nsqds[0]
        nsqd.topics.observers.append(self)
        gevent.spawn(self._run)

    def registered(self, topic: str, channel: str | None) -> None:
        """Send REGISTER."""
        self._commands.put(f"REGISTER {topic} {channel or ''}".strip().encode() + b"\n")

    def unregistered(self, topic: str, channel: str | None) -> None:
        """Send UNREGISTER."""
        self._commands.put(f"UNREGISTER {topic} {channel or ''}".strip().encode() + b"\n")

    def channels_of(self, topic: str) -> tuple[str, ...]:
        """Return nothing: see the class."""
        return ()

    def _run(self) -> None:
        nsqd = self._broker._nsqds[0]
        values = ("localhost", nsqd.options.broadcast_address, nsqd.tcp_port, nsqd.http_port, "1.3.0")
        body = json.dumps(dict(zip(_FIELDS, values, strict=True))).encode()
        with gevent.socket.create_connection(self._address, 5.0) as sock:
            command = b"  V1IDENTIFY\n" + _INT.pack(len(body)) + body
            while True:
                sock.sendall(command)
                answer = sock.recv(4096)
                if not answer:
                    return
                command = self._commands.get()
