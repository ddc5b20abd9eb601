"""What passed between clients and nsqds, read off the wire: the witness of the audit."""

from __future__ import annotations

import re
import struct
import time
from collections import defaultdict, deque

from tests.proxy import Proxy

_SIZED = {b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"}
_ANSWERED = {*_SIZED, b"SUB", b"CLS"}
_RESPONSE, _ERROR, _MESSAGE = 0, 1, 2
#: Errors that answer a command which has no answer when it succeeds.
_LATE = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class Witness:
    """Which numbers the nsqds confirmed and handed over, and which a client finished.  Bodies are ``seed:number``."""

    def __init__(self, seed: int) -> None:
        self.body = re.compile(rb"%d:(\d+)" % seed)
        #: number -> (nsqd, time) of each OK; "host:port", seconds of ``time.monotonic()``.
        self.confirmed: dict[int, list[tuple[str, float]]] = defaultdict(list)
        #: Numbers that an nsqd sent to a client, read by it or not.
        self.given: set[int] = set()
        #: Numbers of which a FIN was sent to an nsqd, carried out or not.
        self.finished: set[int] = set()

    def listen(self, proxy: Proxy, nsqd: str) -> None:
        """Follow each connection that *proxy* makes to *nsqd*."""
        proxy.tap = lambda: Wire(self, nsqd)


class Wire:
    """One plain connection of protocol V2, as far as it got through the proxy."""

    def __init__(self, witness: Witness, nsqd: str) -> None:
        self._witness, self._nsqd = witness, nsqd
        self._up, self._down = bytearray(), bytearray()
        self._greeted = False
        #: The numbers of each command without an answer so far.
        self._waiting: deque[list[int]] = deque()
        self._numbers: dict[bytes, int] = {}

    def up(self, data: bytes) -> None:
        """Take note of what goes to nsqd next."""
        self._up += data
        if not self._greeted and len(self._up) >= 4:
            self._greeted = True
            del self._up[:4]
        while self._greeted and (end := self._up.find(b"\n")) >= 0:
            words = bytes(self._up[:end]).split(b" ")
            end += 1
            body = b""
            if words[0] in _SIZED:
                if len(self._up) < end + 4:
                    return
                (size,) = struct.unpack_from(">I", self._up, end)
                if len(self._up) < end + 4 + size:
                    return
                body = bytes(self._up[end + 4 : end + 4 + size])
                end += 4 + size
            del self._up[:end]
            if words[0] in _ANSWERED:
                self._waiting.append([int(number) for number in self._witness.body.findall(body)])
            elif words[0] == b"FIN" and words[1] in self._numbers:
                self._witness.finished.add(self._numbers[words[1]])

    def down(self, data: bytes) -> None:
        """Take note of what nsqd said next."""
        self._down += data
        while len(self._down) >= 8:
            size, kind = struct.unpack_from(">II", self._down)
            if len(self._down) < 4 + size:
                return
            payload = bytes(self._down[8 : 4 + size])
            del self._down[: 4 + size]
            if kind == _MESSAGE:
                number = self._witness.body.match(payload, 26)
                if number:
                    self._numbers[payload[10:26]] = int(number[1])
                    self._witness.given.add(int(number[1]))
            elif payload != b"_heartbeat_" and not payload.startswith(_LATE) and self._waiting:
                answered = self._waiting.popleft()
                if kind == _RESPONSE and payload == b"OK":
                    now = time.monotonic()
                    for each in answered:
                        self._witness.confirmed[each].append((self._nsqd, now))
