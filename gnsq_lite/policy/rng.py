"""Interface of the source of random numbers of a policy; ``random.Random`` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """Source of random numbers."""

    def random(self) -> float:
        """Return a float, 0.0 <= x < 1.0."""


def shuffled(rng: Rng, items: Iterable[T]) -> list[T]:
    """Return *items* in random order; all orders have the same probability."""
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result
