"""Partitions that are read no further, as a message of theirs cannot be handled (YZ-13)."""

from __future__ import annotations

from gnsq_lite.consume.run_handler import key_of
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import OptionError
from gnsq_lite.message import Message
from gnsq_lite.policy.attempts import Tries


def name_of(endpoint: Endpoint) -> int | str:
    """Return the unit of ordering: a partition, whichever nsqd leads it, or an nsqd without partitions."""
    return str(endpoint) if endpoint.partition is None else endpoint.partition


class StoppedPartitions:
    """Which are stopped, and at which message."""

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._at: dict[int | str, tuple[str, bytes]] = {}

    def __contains__(self, endpoint: Endpoint) -> bool:
        return name_of(endpoint) in self._at

    def names(self) -> tuple[int | str, ...]:
        """Return those that are stopped."""
        return tuple(self._at)

    def stop(self, endpoint: Endpoint, message: Message) -> None:
        """It stops at *message*."""
        self._at[name_of(endpoint)] = key_of(message)

    def resume(self, name: int | str) -> None:
        """It goes on: its message is handled once more.  Raises OptionError for one that is not stopped."""
        if name not in self._at:
            stopped = ", ".join(map(str, self._at)) or "none is"
            raise OptionError("partition", name, f"is not stopped ({stopped})")
        self._tries.not_begun(self._at.pop(name))
