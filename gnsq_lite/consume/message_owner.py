"""What a subscribed connection asks of those above it: to count its messages, and to have them handled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gnsq_lite.dialect import Endpoint
from gnsq_lite.message import Message
from gnsq_lite.net.target import Owner


class Flow(Protocol):
    """Sets RDY by what comes and goes; called in the loop's thread.

    It is told of these two while it watches, and of a connection with more in flight than its share of RDY always.
    """

    @property
    def max_in_flight(self) -> int:
        """How many may be in flight over all connections."""

    @property
    def is_alone(self) -> bool:
        """Whether there is one connection."""

    @property
    def watches(self) -> bool:
        """Whether a RDY may follow, which goes out before the answers to what a read brought."""

    def received(self, endpoint: Endpoint, count: int) -> None:
        """A read brought so many."""

    def answered(self, endpoint: Endpoint, answered: int, expired: int, *, success: bool) -> None:
        """So many are in flight no more: answered, one of them with FIN where *success*; taken back by nsqd."""

    def count_successes(self) -> int:
        """Return how many messages of the Reader were finished so far; from any thread."""

    def failed(self, successes: int) -> None:
        """A message failed after so many successes: RDY 0, where that is called for, goes out before its REQ."""

    def rest(self, endpoint: Endpoint, resting: bool) -> None:
        """It keeps a failed message for a while, and gets no other; or it goes on."""


class MessageOwner(Owner, Protocol):
    """Who gets the messages; called in the loop's thread but where it says otherwise; must not wait."""

    @property
    def flow(self) -> Flow:
        """Who counts them."""

    @property
    def handle(self) -> Callable[[list[Message]], None]:
        """Has them handled; or sends them back, from the beginning of the end."""

    def on_answers_lost(self, count: int) -> None:
        """So many answers came after the end."""

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        """Return the seconds nsqd shall hold it back.  Where handlers run."""
