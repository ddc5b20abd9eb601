"""The RDY of one connection, and its charge: the part of max_in_flight that the connection uses."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

Key = Hashable


class Counts(Protocol):
    """Counts that a connection keeps."""

    #: Messages in flight: neither answered nor timed out.
    count: int
    #: Time of the last read that received messages.
    received_at: float


@dataclass(frozen=True, slots=True)
class SetReady:
    """Send ``RDY count`` on the connection *key*."""

    key: Key
    count: int


class ReadyState:
    """The allocator's state of one connection.  Methods with the parameter *out* append the RDY to send to *out*."""

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
        self.size = 0  # allowed messages in flight: the last RDY, unless the server counts down
        self.sent = 0  # the last RDY
        self.left = 0  # rest of the last RDY at a server that counts down
        self.reserved, self.reserved_until = 0, now  # messages that may still arrive under an earlier, higher RDY
        self.charge = 0  # part of max_in_flight that the connection uses
        self.resting = False  # its message waits for its delay to pass: RDY 0, and no charge
        self.greeted = False  # the first RDY was sent, which is always RDY 1 (RDY-1)
        self.since = self._active = now  # start of its turn; last activity other than messages

    @property
    def in_flight(self) -> int:
        """Messages in flight on the connection."""
        return self.counts.count

    @property
    def active(self) -> float:
        """Time of the last activity."""
        return max(self._active, self.counts.received_at)

    def stir(self, now: float) -> None:
        """Record activity."""
        self._active = now

    def recharge(self) -> int:
        """Update the charge; return its change."""
        charge = 0 if self.resting else max(self.size, self.in_flight, self.reserved)
        change = charge - self.charge
        self.charge = charge
        return change

    def shrink(self, size: int, now: float, settle: float, out: list[SetReady]) -> None:
        """Lower RDY; the old value stays charged for *settle* seconds."""
        if settle > 0:
            self.reserved, self.reserved_until = max(self.reserved, self.size), now + settle
        self.size = size
        self._send(out)

    def grow(self, size: int, now: float, out: list[SetReady]) -> None:
        """Raise RDY; on a new connection, send RDY 1 first.

        A server that counts down gets only RDY 1 at first: messages sent under RDY 1 would add to the second RDY.
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
        """Renew the RDY of a server that counts down, when less than 25 % of it is left (RDY-2)."""
        little = self.left == 0 or self.left < 0.25 * self.sent
        if self.counts_down and little and self.size - self.in_flight > self.left:
            self._send(out)

    def _send(self, out: list[SetReady]) -> None:
        count = self.size
        if self.counts_down:  # the server has subtracted the messages in flight
            count = max(0, count - self.in_flight)
            if count == self.left:
                return
        self.left = self.sent = count
        out.append(SetReady(self.key, count))
