"""A topic's leaders as long as all of them are known, for the publishes of one message: pure.

What is the same for all publishes to a partition is made once here, so that each costs a hash or a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Leader:
    """The leader of a partition."""

    endpoint: Any
    #: The line of a PUB to it.
    head: bytes


class Leaders:
    """The leaders of a topic.

    Args:
        by_number: One for each partition; None: nobody leads it.
        turns: Counts the publishes that any partition may take.
        hash: Returns a number for a key.  May raise UnicodeError.
    """

    __slots__ = ("_by_number", "_hash", "_led", "_turns")

    def __init__(self, by_number: Sequence[Leader | None], turns: Iterator[int], hash: Callable[[bytes], int]) -> None:
        self._by_number, self._turns, self._hash = by_number, turns, hash
        self._led = [leader for leader in by_number if leader is not None]

    def of(self, key: bytes | None, partition: object) -> Leader | None:
        """Return the leader of the key's, the named, or the next partition; None: the dialect says why there is none.

        From any thread.
        """
        if partition is not None:
            if key is None and type(partition) is int and 0 <= partition < len(self._by_number):
                return self._by_number[partition]
            return None
        if key is None:
            return self._led[next(self._turns) % len(self._led)] if self._led else None
        try:
            return self._by_number[self._hash(key) % len(self._by_number)]
        except UnicodeError:
            return None
