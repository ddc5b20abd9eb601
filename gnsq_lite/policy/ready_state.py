"""The RDY of one connection: how many messages it may have in flight, and what that costs the budget."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

Key = Hashable


class Counts(Protocol):
    """What a connection counts for itself."""

    #: Messages that are neither answered nor given up by nsqd.
    count: int
    #: The clock's time of the last read that brought messages.
    received_at: float


@dataclass(frozen=True, slots=True)
class SetReady:
    """Send ``RDY count`` on the connection *key*."""

    key: Key
    count: int


class ReadyState:
    """What the allocator knows of one connection.  The methods that take *out* append the RDY to send to it."""

    __slots__ = (
        "_active",
        "charge",
        "counts",
        "counts_down",
        "greeted",
        "key",
        "left",
        "limit",
        "reserved",
        "reserved_until",
        "resting",
        "sent",
        "since",
        "size",
    )

    def __init__(self, key: Key, limit: int, counts: Counts, *, counts_down: bool, now: float) -> None:
        self.key, self.limit, self.counts, self.counts_down = key, limit, counts, counts_down
        self.size = 0  # messages it may have in flight: the last RDY, but for servers that count down
        self.sent = 0  # the last RDY
        self.left = 0  # what is left of it at a server that counts down
        self.reserved, self.reserved_until = 0, now  # messages that may still come under a RDY that was taken back
        self.charge = 0  # what it costs the budget
        self.resting = False  # its message waits for a pause to end: it gets no RDY, and costs nothing
        self.greeted = False  # a RDY was sent, and RDY 1 first (RDY-1)
        self.since = self._active = now  # begin of its turn; last sign, but for messages, that it is not idle

    @property
    def in_flight(self) -> int:
        """Its messages in flight."""
        return self.counts.count

    @property
    def active(self) -> float:
        """When it was last seen not to be idle."""
        return max(self._active, self.counts.received_at)

    def stir(self, now: float) -> None:
        """Take that it is not idle now."""
        self._active = now

    def recharge(self) -> int:
        """Bring the charge up to date; return by how much it changed."""
        charge = 0 if self.resting else max(self.size, self.in_flight, self.reserved)
        change = charge - self.charge
        self.charge = charge
        return change

    def shrink(self, size: int, now: float, settle: float, out: list[SetReady]) -> None:
        """Take RDY back; what it was stays charged for *settle* seconds."""
        if settle > 0:
            self.reserved, self.reserved_until = max(self.reserved, self.size), now + settle
        self.size = size
        self._send(out)

    def grow(self, size: int, now: float, out: list[SetReady]) -> None:
        """Give RDY: 1 first on a new connection.

        A server that counts down adds what it sent under the first to the second: it gets the 1 only, for now.
        """
        if not self.size:
            self.since = self._active = now
        if not self.greeted and size > 1:
            if self.counts_down:
                size = 1
            else:
                out.append(SetReady(self.key, 1))
        self.greeted = True
        self.size = size
        self._send(out)

    def refresh(self, out: list[SetReady]) -> None:
        """Renew the RDY of a server that counts it down, when little of it is left (RDY-2)."""
        little = self.left == 0 or self.left < 0.25 * self.sent
        if self.counts_down and little and self.size - self.in_flight > self.left:
            self._send(out)

    def _send(self, out: list[SetReady]) -> None:
        count = self.size
        if self.counts_down:  # what is in flight was taken from the count already
            count = max(0, count - self.in_flight)
            if count == self.left:
                return
        self.left = self.sent = count
        out.append(SetReady(self.key, count))
