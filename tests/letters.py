"""Dead letters for tests."""

from __future__ import annotations

from gnsq_lite.worker.dead import DeadLetter


def letter(number: int, nsqd_address: str) -> DeadLetter:
    """Return a letter of the topic orders."""
    return DeadLetter(
        topic="orders",
        channel="c",
        body=b"%d" % number,
        id=b"%016d" % number,
        timestamp_ns=17,
        attempts=3,
        nsqd_address=nsqd_address,
    )
