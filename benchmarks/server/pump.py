"""A frame pump: speaks just enough nsqd to keep a client busy, and keeps account of what the client may and may not do.

One process, one thread, no queues: every frame is made before the client connects, so that the server is never the
bottleneck.  Run as ``python pump.py JSON``; prints ``{"addresses": [...]}`` when it listens and its account when its
standard input is closed.  Not a broker: topics and channels are not told apart, requeued messages do not come again.

The account (key ``violations``) holds every broken rule: an answer to a message that was not sent or had its answer, a
RDY above the limit, a sum of RDY over all connections that stayed above max_in_flight, a heartbeat without NOP.
"""

from __future__ import annotations

import json
import math
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from frames import HEAD, Frames, identity, packer, unpacker

_SIZE = struct.Struct(">I")
_OK = b"\0\0\0\6\0\0\0\0OK"
_BEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"
_MAX_RDY = 2500
_GRACE = 0.1  # seconds the sum of RDY may be too high while commands of several connections cross


class Client:
    """One connection: what it said so far, and what it may get."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.rest = b""
        self.greeted = self.subscribed = self.closing = False
        self.ready = self.sent = self.answered = 0
        self.beats = self.nops = 0
        self.beat_every, self.next_beat = 30.0, time.monotonic() + 30.0
        self.beat_sent = 0.0
        self.pack: Callable[[bytes], bytes] = identity
        self.unpack: Callable[[bytes], bytes] = identity
        self.out: list[Any] = []
        self.blocked = False
        self.unit = b""


class Pump:
    """The server.  *config* has messages, body, codec, max_in_flight, listeners, beat_every_messages and rate."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        body = (b"%020d" % 0).ljust(config["body"], b"x") if config["rate"] else config["text"].encode()
        self.frames = Frames(0 if config["rate"] else config["messages"], body, config["codec"])
        self.selector = selectors.DefaultSelector()
        self.clients: list[Client] = []
        self.beats = 0
        self.log: list[tuple[int, bytes]] = []
        self.violations: list[str] = []
        self.published = self.requeued = self.finished = 0
        self.subscribers = self.ready_sum = self.ready_peak = 0
        self.over_since = self.slowest_nop = 0.0
        self.stamped = 0
        self.running = True

    # -- the loop -------------------------------------------------------------------------------------------------

    def listen(self) -> list[str]:
        """Open one listener for each loopback address; return them as host:port."""
        addresses, port = [], 0
        for n in range(1, self.config["listeners"] + 1):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((f"127.0.0.{n}", port))
            listener.listen(16)
            port = listener.getsockname()[1]
            addresses.append(f"127.0.0.{n}:{port}")
            self.selector.register(listener, selectors.EVENT_READ, self._accept)
        return addresses

    def run(self) -> None:
        """Serve until standard input ends."""
        self.selector.register(sys.stdin, selectors.EVENT_READ, self._stop)
        pause = 1 / self.config["rate"] if self.config["rate"] else 0.25
        due = time.monotonic()
        while self.running:
            for key, mask in self.selector.select(max(0.0, min(0.25, due - time.monotonic()))):
                if isinstance(key.data, Client):
                    self._serve(key.data, mask)
                else:
                    key.data(key.fileobj)
            now = time.monotonic()
            if now >= due:
                due = max(due + pause, now - 1.0)
                self._beat(now)
                if self.config["rate"]:
                    self._stamp()
            self._judge_sum(now)

    def _stop(self, _stdin: object) -> None:
        self.running = False

    def _accept(self, listener: socket.socket) -> None:
        sock, _peer = listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(sock)
        self.clients.append(client)
        self.selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: Client, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = client.socket.recv(1 << 18)
                if not data:
                    raise ConnectionError
                self._read(client, client.unpack(data))
            if mask & selectors.EVENT_WRITE:
                self._flush(client)
            if client.ready:
                self._fill(client)
        except (ConnectionError, OSError):
            self._lose(client)

    def _lose(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            self._add_ready(-client.ready)
            self._judge_beats(client)
            self.selector.unregister(client.socket)
            client.socket.close()

    def _judge_beats(self, client: Client) -> None:
        self.beats += client.beats
        if client.beats > client.nops and time.monotonic() - client.beat_sent > 1.0:
            self.violations.append(f"{client.beats} heartbeats, {client.nops} answers")

    # -- to the client --------------------------------------------------------------------------------------------

    def _send(self, client: Client, data: Any, packed: bool = False) -> None:
        client.out.append(data if packed or client.pack is identity else client.pack(bytes(data)))
        if not client.blocked:
            self._flush(client)

    def _flush(self, client: Client) -> None:
        while client.out:
            data = client.out[0] if len(client.out) == 1 else b"".join(client.out)
            try:
                sent = client.socket.send(data)
            except BlockingIOError:
                sent = 0
            client.out = [memoryview(data)[sent:]] if sent < len(data) else []
            if client.out and not sent:
                break
        if bool(client.out) != client.blocked:
            client.blocked = bool(client.out)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.blocked else 0)
            self.selector.modify(client.socket, events, client)

    def _fill(self, client: Client) -> None:
        frames, every = self.frames, self.config["beat_every_messages"]
        while not client.blocked and not client.closing and frames.sent < frames.messages:
            window = client.ready - (client.sent - client.answered)
            if window <= 0:
                return
            before = frames.sent
            count, data, packed = frames.take(window)
            client.sent += count
            self._send(client, data, packed)
            if every and frames.sent // every != before // every:
                self._send_beat(client)

    def _stamp(self) -> None:
        for client in self.clients:
            if client.ready > client.sent - client.answered and self.stamped < self.config["messages"]:
                head = HEAD.pack(30 + self.config["body"], 2, time.time_ns(), 1)
                body = (b"%020d" % time.monotonic_ns()).ljust(self.config["body"], b"x")
                client.sent += 1
                self._send(client, b"%b%016x%b" % (head, self.stamped, body))
                self.stamped += 1

    def _send_beat(self, client: Client) -> None:
        client.beats += 1
        if client.beats == client.nops + 1:
            client.beat_sent = time.monotonic()
        self._send(client, _BEAT)

    def _beat(self, now: float) -> None:
        for client in list(self.clients):
            if client.greeted and now >= client.next_beat:
                client.next_beat = now + client.beat_every
                try:
                    self._send_beat(client)
                except OSError:
                    self._lose(client)

    # -- from the client ------------------------------------------------------------------------------------------

    def _read(self, client: Client, data: bytes) -> None:
        data = client.rest + data if client.rest else data
        if client.subscribed:
            cut = data.rfind(b"\n") + 1
            client.rest = data[cut:]
            self._answers(client, data[:cut])
        else:
            client.rest = self._commands(client, data)

    def _answers(self, client: Client, block: bytes) -> None:
        fins = block.count(b"FIN ")
        client.answered += fins
        self.finished += fins
        if fins:
            self.log.append((max(self.frames.sent, self.stamped), block))
        if len(block) == 21 * fins:
            return
        for line in block.split(b"\n"):
            verb = line[:4]
            if verb == b"RDY ":
                self._ready(client, int(line[4:]))
            elif verb == b"NOP":
                client.nops += 1
                self.slowest_nop = max(self.slowest_nop, time.monotonic() - client.beat_sent)
                client.beat_sent = time.monotonic()
            elif verb == b"REQ ":
                client.answered += 1
                self.requeued += 1
            elif verb == b"CLS":
                client.closing = True
                self._send(client, b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT")
            elif verb not in (b"FIN ", b"", b"TOUC"):
                self.violations.append(f"command not expected after SUB: {line[:40]!r}")

    def _ready(self, client: Client, ready: int) -> None:
        change, client.ready = ready - client.ready, ready
        limit = min(_MAX_RDY, self.config["max_in_flight"])
        if ready > limit:
            self.violations.append(f"RDY {ready} is above {limit}")
        self._add_ready(change)

    def _add_ready(self, change: int) -> None:
        self.ready_sum += change
        if self.ready_sum <= self.config["max_in_flight"]:
            self.over_since = 0.0
            self.ready_peak = max(self.ready_peak, self.ready_sum)
        elif not self.over_since:
            self.over_since = time.monotonic()

    def _judge_sum(self, now: float) -> None:
        if self.over_since and now - self.over_since > _GRACE:
            self.violations.append(f"RDY of all connections is {self.ready_sum} > {self.config['max_in_flight']}")
            self.over_since = now + 3600

    def _commands(self, client: Client, data: bytes) -> bytes:
        """Carry out the whole commands at the head of *data*; return the rest."""
        if not client.greeted and data.startswith(b"  V2"):
            data = data[4:]
        if client.unit and data.startswith(client.unit):
            data = self._alike(client, data)
        at, acks = 0, 0
        while (end := data.find(b"\n", at)) >= 0:
            verb, _, _argument = data[at:end].partition(b" ")
            payload = b""
            if verb in (b"PUB", b"MPUB", b"DPUB", b"IDENTIFY", b"AUTH"):
                if len(data) < end + 5 or len(data) < end + 5 + (size := _SIZE.unpack_from(data, end + 1)[0]):
                    break
                payload = data[end + 5 : end + 5 + size]
                if verb == b"PUB":
                    client.unit = data[at : end + 5]
                at = end + 5 + size
            else:
                at = end + 1
            if verb in (b"PUB", b"DPUB"):
                acks += 1
                self.published += 1
            elif verb == b"MPUB":
                acks += 1
                self.published += _SIZE.unpack_from(payload)[0]
            elif self._setup(client, verb, payload):
                break
        if acks:
            self._send(client, _OK * acks)
        if client.subscribed:
            self._read_after_sub(client, data[at:])
            return client.rest
        return data[at:]

    def _read_after_sub(self, client: Client, data: bytes) -> None:
        client.rest = b""
        self._read(client, data)

    def _alike(self, client: Client, data: bytes) -> bytes:
        """Answer a run of PUBs of one topic and size without looking into each."""
        size = len(client.unit) + _SIZE.unpack(client.unit[-4:])[0]
        count = min(len(data) // size, data.count(client.unit))
        while count and data[(count - 1) * size : (count - 1) * size + len(client.unit)] != client.unit:
            count -= 1
        self.published += count
        if count:
            self._send(client, _OK * count)
        return data[count * size :]

    def _setup(self, client: Client, verb: bytes, payload: bytes) -> bool:
        if verb == b"IDENTIFY":
            self._identify(client, json.loads(payload))
        elif verb == b"SUB":
            client.subscribed = True
            self.subscribers += 1
            self._send(client, _OK)
            return True
        elif verb == b"NOP":
            client.nops += 1
        elif verb == b"CLS":
            self._send(client, b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT")
        else:
            self.violations.append(f"command not known: {verb[:40]!r}")
        return False

    def _identify(self, client: Client, wishes: dict[str, Any]) -> None:
        client.greeted = True
        interval = wishes.get("heartbeat_interval") or 30000
        client.beat_every = interval / 1000 if interval > 0 else math.inf  # -1: the client wants none
        client.next_beat = time.monotonic() + client.beat_every
        codec = "snappy" if wishes.get("snappy") else "deflate" if wishes.get("deflate") else "plain"
        answer = {
            "max_rdy_count": _MAX_RDY,
            "version": "1.3.0",
            "max_msg_timeout": 900000,
            "msg_timeout": 60000,
            "tls_v1": False,
            "snappy": codec == "snappy",
            "deflate": codec == "deflate",
            "deflate_level": 6,
            "max_deflate_level": 6,
            "sample_rate": 0,
            "auth_required": False,
            "output_buffer_size": 16384,
            "output_buffer_timeout": 250,
        }
        text = json.dumps(answer).encode()
        self._send(client, _SIZE.pack(4 + len(text)) + b"\0\0\0\0" + text)
        if codec != "plain":
            client.pack, client.unpack = packer(codec), unpacker(codec)
            if codec == "snappy":
                self._send(client, b"\xff\x06\x00\x00sNaPpY", packed=True)
            self._send(client, _OK)

    # -- the account ----------------------------------------------------------------------------------------------

    def account(self) -> dict[str, Any]:
        """Return what happened, after checking each answer against what had been sent when it came."""
        answered = bytearray(max(self.frames.sent, self.stamped))
        for sent, block in self.log:
            for line in block.split(b"\n"):
                if line.startswith(b"FIN "):
                    ident = int(line[4:], 16)
                    if ident >= sent:
                        self.violations.append(f"message {ident} finished before it was sent")
                    elif answered[ident]:
                        self.violations.append(f"message {ident} finished twice")
                    else:
                        answered[ident] = 1
        connected = len(self.clients)
        for client in list(self.clients):
            self._lose(client)
        return {
            "sent": max(self.frames.sent, self.stamped),
            "finished": self.finished,
            "distinct": sum(answered),
            "requeued": self.requeued,
            "published": self.published,
            "subscribers": self.subscribers,
            "connections": connected,
            "heartbeats": self.beats,
            "slowest_nop": self.slowest_nop,
            "ready_peak": self.ready_peak,
            "violations": self.violations[:20],
            "cpu": time.process_time(),
        }


def main() -> None:
    """Serve what ``argv[1]`` asks for."""
    pump = Pump(json.loads(sys.argv[1]))
    print(json.dumps({"addresses": pump.listen()}), flush=True)
    pump.run()
    print(json.dumps(pump.account()), flush=True)


if __name__ == "__main__":
    main()
