"""Offsets of the streaming source.

An offset is a JSON object with its keys in a fixed order: Spark compares the text.  ``seg`` is the number of the last
segment of a batch; ``spool`` tells a spool from one
that took its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.spark.spoolmeta import SpoolError

#: What is said where a spool has more committed than the query's checkpoint knows of.
OLDER = (
    "the checkpoint is an older copy.  Begin with a new checkpointLocation: it goes on where the spool is; this one"
    " gives new rows the numbers of batches that were done, by which a sink may skip them"
)


@dataclass(frozen=True)
class Offset:
    """A position: *number* segments of the spool *spool* are done."""

    spool: str
    number: int

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark stores."""
        return {"v": 1, "spool": self.spool, "seg": self.number}


def parse_offset(raw: Mapping[str, Any]) -> Offset:
    """Return the offset Spark gives back.  Raises SpoolError for one that is not this source's."""
    if raw.get("v") != 1 or not isinstance(raw.get("seg"), int) or not isinstance(raw.get("spool"), str):
        raise SpoolError(
            f"the checkpoint's offset {dict(raw)!r} is not one of this source: use another checkpointLocation"
        )
    return Offset(raw["spool"], raw["seg"])


@dataclass(frozen=True)
class Limits:
    """What a micro-batch may have at the most."""

    rows: int | None = None
    bytes: int | None = None

    def tightened(self, limit: Any) -> Limits:
        """Return the stricter of these limits and a Spark ReadLimit (ReadMaxRows, ReadMaxBytes, others: none)."""
        rows = [one for one in (self.rows, getattr(limit, "max_rows", None)) if one is not None]
        size = [one for one in (self.bytes, getattr(limit, "max_bytes", None)) if one is not None]
        return Limits(min(rows, default=None), min(size, default=None))

    def cut(self, sizes: list[tuple[int, int, int]]) -> int | None:
        """Return the number of the last of *sizes* (number, rows, bytes) that fits; at least the first is taken."""
        last: int | None = None
        rows = size = 0
        for number, more_rows, more_bytes in sizes:
            rows += more_rows
            size += more_bytes
            too_many = self.rows is not None and rows > self.rows
            if last is not None and (too_many or (self.bytes is not None and size > self.bytes)):
                break
            last = number
        return last


class Patience:
    """Whether a batch waits for more: until *rows* are there, or *delay* seconds since some were."""

    def __init__(self, rows: int | None, delay: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rows, self._delay, self._clock = rows, delay, clock
        self._since: float | None = None

    def waits(self, waiting: Callable[[], int]) -> bool:
        """Ask with what counts the rows that wait, one at least."""
        if self._rows is None:
            return False
        now = self._clock.now()
        self._since = now if self._since is None else self._since
        if now - self._since < self._delay and waiting() < self._rows:
            return True
        self._since = None
        return False
