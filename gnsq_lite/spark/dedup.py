"""Recognises a message that nsqd sends again although it is spooled.

Between the sync of a message and nsqd's taking of its FIN a crash makes nsqd send it once more, after its time-out.
Only messages with more than one attempt are looked up, so the usual case costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.clock import Clock
from gnsq_lite.spark.schema import key_columns, keys

_ATTEMPTS = 5


class Recent:
    """The keys of the newest spooled rows: at most *most_rows*, none older than *retention* seconds."""

    def __init__(self, most_rows: int, retention: float, clock: Clock) -> None:
        self._most_rows, self._retention, self._clock = most_rows, retention, clock
        self._chunks: deque[tuple[float, pa.RecordBatch]] = deque()
        self.rows = 0
        self.dropped = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Remember the rows of *batch* as spooled."""
        self._chunks.append((self._clock.now(), key_columns(batch)))
        self.rows += batch.num_rows
        oldest = self._clock.now() - self._retention
        while self._chunks and (self.rows > self._most_rows or self._chunks[0][0] < oldest):
            self.rows -= self._chunks.popleft()[1].num_rows

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return *batch* without the rows that are spooled already, or that it has twice."""
        attempts = batch.column(_ATTEMPTS)
        if pc.max(attempts).as_py() <= 1:
            return batch
        suspects = pc.greater(attempts, 1).to_pylist()
        known = self._known(batch.filter(pc.greater(attempts, 1)))
        seen: set[tuple[str, str, int]] = set()
        keep = []
        for key, suspect in zip(keys(key_columns(batch)), suspects, strict=True):
            again = suspect and (key in known or key in seen)
            seen.add(key)
            keep.append(not again)
        missing = keep.count(False)
        self.dropped += missing
        return batch.filter(pa.array(keep)) if missing else batch

    def _known(self, suspects: pa.RecordBatch) -> set[tuple[str, str, int]]:
        wanted = suspects.column("id")
        found: set[tuple[str, str, int]] = set()
        for _, chunk in self._chunks:
            hits = pc.is_in(chunk.column("id"), value_set=wanted)
            if pc.any(hits).as_py():
                found.update(keys(chunk.filter(hits)))
        return found

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Remember rows of an earlier run, oldest first."""
        for batch in batches:
            self.add(batch)
