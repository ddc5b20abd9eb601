"""The log of one (epoch, slot): numbered chunks that are published once, and an end (receiver=executors).

Spark may run two attempts of a task at the same time, and an attempt it gave up may still run.  A chunk's number is
taken by creating its name exclusively, and FIN follows only then; the end marker takes a number too, so
nobody can publish, and finish, behind it.  Every attempt yields the same chunks in the same order.  A committed epoch
is removed, its plan first: who publishes in one without a plan finishes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from gnsq_lite.spark import segments
from gnsq_lite.spark.segments import SegmentDamaged
from gnsq_lite.spark.shelves import Shelf, wanted_name

_END = b"GNSQEND1"


@dataclass(frozen=True)
class End:
    """How an epoch ended in one slot."""

    rows: int
    #: Rows that were published before the query's AvailableNow began.
    backlog: int
    connected: bool
    #: The nsqds that are known of and were away at the end.
    missing: Sequence[str] = ()
    #: Seconds since something of the backlog came, or an nsqd, at the end.
    silent: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What was decided for an epoch when it was planned first; it holds when the batch runs again."""

    receivers: int
    backlog_until_ns: int


class EpochLog:
    """One slot's log of one epoch, on a shelf all executors share."""

    def __init__(self, shelf: Shelf, epoch: int, slot: int) -> None:
        self._shelf, self._epoch, self._slot = shelf, epoch, slot

    def _name(self, number: int) -> str:
        return f"e{self._epoch:016d}-s{self._slot:04d}-c{number:06d}.seg"

    def read(self, number: int) -> list[pa.RecordBatch] | End | None:
        """Return chunk *number*: its batches, the end, or None where nobody has published it.

        Raises SegmentDamaged.
        """
        data = self._shelf.read(self._name(number))
        if data is None:
            return None
        end = _end(data)
        if end is not None:
            return end
        found = segments.scan(data)
        if found.size != data.size or not found.rows:
            raise SegmentDamaged(f"chunk {self._name(number)} is damaged")
        return found.batches

    def publish(self, number: int, batches: Sequence[pa.RecordBatch]) -> bool:
        """Publish chunk *number*, durably; False: somebody else has."""
        return self._create(number, segments.head(batches[0].schema) + b"".join(segments.record(b) for b in batches))

    def finish(self, number: int, end: End) -> bool:
        """Publish the end as chunk *number*; False: there is another chunk of that number."""
        return self._create(number, _END + json.dumps(asdict(end)).encode())

    def is_over(self) -> bool:
        """Whether the epoch is committed and forgotten, so that nobody reads what is published in it.

        An attempt that goes on beside the one that counted finds numbers free again whose chunks were removed.  It must
        ask after it has published, before it finishes anything.
        """
        return read_plan(self._shelf, self._epoch) is None

    def _create(self, number: int, data: bytes) -> bool:
        return self._shelf.create(self._name(number), data)

    def end(self) -> End | None:
        """Return how the epoch ended here; None: it has not.

        The end is the last chunk: the rows before it, which may be many, are not read.
        """
        slot = self._name(0)[: -len("000000.seg")]
        last = max((name for name in self._shelf.names() if name.startswith(slot)), default=None)
        data = None if last is None else self._shelf.read(last)
        return None if data is None else _end(data)


def _end(data: pa.Buffer) -> End | None:
    """Return the end that *data* is; None: it is a chunk of rows."""
    if data.slice(0, len(_END)).to_pybytes() != _END:
        return None
    return End(**json.loads(data.slice(len(_END)).to_pybytes()))


def _plan(epoch: int) -> str:
    return f"e{epoch:016d}-plan.json"


def plan_epoch(shelf: Shelf, epoch: int, plan: Plan) -> Plan:
    """Store *plan* for *epoch*, or return the one that was stored before."""
    found = read_plan(shelf, epoch)
    if found is None and shelf.create(_plan(epoch), json.dumps(asdict(plan)).encode()):
        return plan
    return found or read_plan(shelf, epoch) or plan


def read_plan(shelf: Shelf, epoch: int) -> Plan | None:
    """Return the stored plan of *epoch*."""
    data = shelf.read(_plan(epoch))
    return None if data is None else Plan(**json.loads(data.to_pybytes()))


def forget_epochs(shelf: Shelf, up_to: int) -> None:
    """Remove the logs of the epochs up to *up_to*; their plans first, see :meth:`EpochLog.is_over`.

    And what killed attempts left half-written, an epoch later: an attempt that lives is to find out about its end.
    """
    names = shelf.names()
    found = [(name, segments.epoch_of(name)) for name in names]
    aside = [(name, segments.epoch_of(wanted_name(name) or "")) for name in names]
    left = [name for name, epoch in aside if epoch is not None and epoch < up_to]
    gone = {name: epoch for name, epoch in found if epoch is not None and epoch <= up_to}
    plans = {_plan(epoch) for epoch in gone.values()}
    shelf.remove(sorted(plans))
    shelf.remove([name for name in gone if name not in plans] + left)
