"""The source of random numbers of a policy.  ``random.Random`` fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """Random numbers."""

    def random(self) -> float:
        """Return a float, 0.0 <= x < 1.0."""


def shuffled(rng: Rng, items: Iterable[T]) -> list[T]:
    """Return *items* in random order, each order with the same chance."""
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result
