"""An even split of a budget, with upper limits (RDY-3, RDY-5)."""

from __future__ import annotations

from collections.abc import Sequence


def even_split(budget: int, limits: Sequence[int], current: Sequence[int]) -> list[int]:
    """Split *budget* evenly; no share exceeds its limit, and what a limit leaves over goes to the others.

    No two shares below their limits differ by more than one.  What cannot be divided goes, one each, to those who
    have the most now (*current*), so that a small change of the budget or of the number of takers changes few shares.
    The sum is the budget, or the sum of the limits where that is less.  With a budget of at least one for each taker
    nobody with a limit above 0 is left at 0.
    """
    shares = list(limits)
    by_limit = sorted(range(len(limits)), key=limits.__getitem__)
    for position, index in enumerate(by_limit):
        takers = len(by_limit) - position
        share, odd = divmod(budget, takers)
        if limits[index] > share:
            rest = sorted(by_limit[position:], key=lambda taker: (-current[taker], taker))
            for rank, taker in enumerate(rest):
                shares[taker] = share + (rank < odd)
            break
        budget -= limits[index]
    return shares
