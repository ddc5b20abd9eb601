"""An ordered connection whose handlers' threads go from one message to the next by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.read_in_threads import ReadInThreads
from gnsq_lite.message import Message
from gnsq_lite.policy.sequence import Decision


class OrderedInThreads(ReadInThreads, OrderedConnection):
    """The lock guards the sequence as well."""

    def finish(self, message: Message) -> None:
        """Have the loop send FIN; from any thread."""
        self._finish_soon(message)

    def _ends(self, message: Message) -> bool:
        return self._sequence.ends(message)

    def _begins(self, message: Message) -> bool:
        return self._sequence.begins(message)

    def _ask(self, decide: Callable[..., Iterable[Decision]], *about: Any) -> None:
        with self._lock:
            self._go_on_reading()
            super()._ask(decide, *about)
