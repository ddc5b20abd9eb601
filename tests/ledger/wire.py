"""What passed between clients and nsqds, read off the wire: the witness of the audit.

It reads the protocol by itself, with none of the library's code, so that a mistake cannot hide on both sides.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections import defaultdict, deque
from functools import partial
from typing import NamedTuple

from tests.proxy import Proxy

_SIZED = {b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"}
_ANSWERED = {*_SIZED, b"SUB", b"CLS"}
_RESPONSE, _MESSAGE = 0, 2
#: Errors that answer a command which has no answer when it succeeds.
_LATE = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class Passed(NamedTuple):
    """A message that was handed to a client, or its FIN.  Times are seconds of ``time.monotonic()``."""

    worker: str
    number: int
    id: str
    nsqd: str
    at: float


class Witness:
    """Which numbers the nsqds confirmed and handed over, and which a client finished.  Bodies are ``seed:number``."""

    def __init__(self, seed: int) -> None:
        self.body = re.compile(rb"%d:(\d+)" % seed)
        #: number -> (nsqd "host:port", time) of each OK that went on to the client.
        self.confirmed: dict[int, list[tuple[str, float]]] = defaultdict(list)
        #: Numbers that an nsqd sent to a client, whether they got through to it or not.
        self.given: set[int] = set()
        #: What went on to a client, and the FINs that were sent to an nsqd, carried out or not; in order of time.
        self.deliveries: list[Passed] = []
        self.fins: list[Passed] = []
        #: What no client may send, whatever its handlers did, in words.
        self.lies: list[str] = []

    @property
    def finished(self) -> set[int]:
        """Numbers of which a FIN was sent."""
        return {fin.number for fin in self.fins}

    def listen(self, proxy: Proxy, nsqd: str) -> None:
        """Follow each connection that *proxy* makes to *nsqd*."""
        proxy.tap = lambda: Wire(self, nsqd)


class Wire:
    """One connection of protocol V2, as far as it got through the proxy."""

    def __init__(self, witness: Witness, nsqd: str) -> None:
        self._witness, self._nsqd = witness, nsqd
        self._worker = ""
        self._up, self._down = bytearray(), bytearray()
        self._greeted = False
        #: The numbers of each command without an answer so far.
        self._waiting: deque[list[int]] = deque()
        self._numbers: dict[bytes, int] = {}
        #: How often each id was handed over, less its answers.
        self._open: dict[bytes, int] = defaultdict(int)
        #: Bytes that nsqd sent, bytes that went on, and what is so when so many have gone on.
        self._sent = self._gone = 0
        self._then: deque[tuple[int, partial[None]]] = deque()

    def up(self, data: bytes) -> None:
        """Take note of what goes to nsqd next."""
        self._up += data
        at = 0
        if not self._greeted and len(self._up) >= 4:
            self._greeted, at = True, 4
        while self._greeted and (end := self._up.find(b"\n", at)) >= 0:
            words, body = bytes(self._up[at:end]).split(b" "), b""
            end += 1
            if words[0] in _SIZED:
                if len(self._up) < end + 4:
                    break
                (size,) = struct.unpack_from(">I", self._up, end)
                if len(self._up) < end + 4 + size:
                    break
                body = bytes(self._up[end + 4 : end + 4 + size])
                end += 4 + size
            self._command(words, body)
            at = end
        del self._up[:at]

    def _command(self, words: list[bytes], body: bytes) -> None:
        if words[0] == b"IDENTIFY":
            self._worker = json.loads(body)["client_id"]
        if words[0] in _ANSWERED:
            self._waiting.append([int(number) for number in self._witness.body.findall(body)])
        elif words[0] in (b"FIN", b"REQ"):
            self._answer(words[0].decode(), words[1])

    def _answer(self, verb: str, id: bytes) -> None:
        number = self._numbers.get(id)
        if number is None or self._open[id] < 1:
            what = "was never sent" if number is None else f"has answered already ({number})"
            self._witness.lies.append(f"{verb} {id.decode()} from {self._worker}, which that connection {what}")
            return
        self._open[id] -= 1
        if verb == "FIN":
            self._witness.fins.append(self._passed(number, id))

    def _passed(self, number: int, id: bytes) -> Passed:
        return Passed(self._worker, number, id.decode(), self._nsqd, time.monotonic())

    def down(self, data: bytes) -> None:
        """Note nsqd's next bytes, also if the proxy does not forward them."""
        self._down += data
        at = 0
        while len(self._down) >= at + 8:
            size, kind = struct.unpack_from(">II", self._down, at)
            if len(self._down) < at + 4 + size:
                break
            payload = bytes(self._down[at + 8 : at + 4 + size])
            at += 4 + size
            self._frame(kind, payload, self._sent + at)
        del self._down[:at]
        self._sent += at

    def _frame(self, kind: int, payload: bytes, end: int) -> None:
        if kind == _MESSAGE:
            number = self._witness.body.match(payload, 26)
            if number:
                self._witness.given.add(int(number[1]))
                self._then.append((end, partial(self._delivered, int(number[1]), payload[10:26])))
        elif payload != b"_heartbeat_" and not payload.startswith(_LATE) and self._waiting:
            answered = self._waiting.popleft()
            if kind == _RESPONSE and payload == b"OK":
                self._then.append((end, partial(self._confirmed, answered)))

    def passed(self, count: int) -> None:
        """So many bytes more go on to the client now."""
        self._gone += count
        while self._then and self._then[0][0] <= self._gone:
            self._then.popleft()[1]()

    def _delivered(self, number: int, id: bytes) -> None:
        self._numbers[id] = number
        self._open[id] += 1
        self._witness.deliveries.append(self._passed(number, id))

    def _confirmed(self, numbers: list[int]) -> None:
        now = time.monotonic()
        for each in numbers:
            self._witness.confirmed[each].append((self._nsqd, now))
