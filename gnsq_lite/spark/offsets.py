"""Parses positions from Spark's offsets, and limits the rows of a micro-batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import OptionError
from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.recording import Position


def parse_position(raw: Mapping[str, Any]) -> Position:
    """Parse an offset from Spark.  Raises RecordingError if the offset is not a position of this source."""
    if not all(isinstance(name, str) and type(row) is int for name, row in raw.items()):
        raise RecordingError(
            f"the checkpoint's offset {dict(raw)!r} is not an offset of this source: use another checkpointLocation"
        )
    return dict(raw)


def given_position(option: str, text: str) -> Position:
    """Parse *text*, the JSON of the option *option*, into a position.  Raises OptionError."""
    try:
        return parse_position(json.loads(text))
    except (ValueError, AttributeError, RecordingError):
        why = 'must be earliest, latest, or JSON of log names and rows, such as {"1f0c9a7e": 1000}'
        raise OptionError(option, text, why) from None


def limited(begin: Position, end: Position, rows: int | None) -> Position:
    """Return *end*, or a position *rows* rows after *begin*.  A log's share is proportional to its waiting rows."""
    waiting = {name: row - begin.get(name, 0) for name, row in end.items() if row > begin.get(name, 0)}
    total = sum(waiting.values())
    found = dict(begin)
    left = total if rows is None else min(rows, total)
    for name in sorted(waiting):
        share = -(-left * waiting[name] // total) if total else 0
        found[name] = begin.get(name, 0) + share
        left -= share
        total -= waiting[name]
    return found


class MinimumRows:
    """Delays a batch until *rows* rows wait, or until *delay* seconds after the first row began to wait."""

    def __init__(self, rows: int | None, delay: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rows, self._delay, self._clock = rows, delay, clock
        self._since: float | None = None

    def waits(self, waiting: Callable[[], int]) -> bool:
        """Return whether to delay the batch.  Call this only while rows wait.  *waiting* returns their number."""
        if self._rows is None:
            return False
        now = self._clock.now()
        self._since = now if self._since is None else self._since
        if now - self._since < self._delay and waiting() < self._rows:
            return True
        self._since = None
        return False
