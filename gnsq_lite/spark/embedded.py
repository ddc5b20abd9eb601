"""Runs the recorder of a query in Spark's source process, and removes rows after the query has committed them."""

from __future__ import annotations

import logging
from typing import Any

from gnsq_lite.recording.errors import RecordingInUse
from gnsq_lite.recording.local import LocalLog
from gnsq_lite.recording.objects import ObjectLog
from gnsq_lite.recording.receiver import Receiver
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.recording import Position, Recording
from gnsq_lite.spark.options import SourceOptions

log = logging.getLogger("gnsq_lite.spark")

#: Seconds that a starting query waits for the recording's previous query to end.
LOCK_WAIT = 5.0
#: Added to the error of a second recorder.  The same query has two recorders if its plan reads the frame twice.
ONE_OWNER = (
    "only one query may record into a recording, and its plan may read the frame only once: to write one frame twice,"
    " use foreachBatch; to read the recording in a second query, omit the option topic there"
)
#: Above this number or these bytes of committed files, the index of known messages is written and the files removed.
KEPT_FILES, KEPT_BYTES = 100, 16 << 20


class Embedded:
    """Records a query's channel into its recording, and removes rows that the query has committed."""

    def __init__(self, recording: Recording, options: SourceOptions) -> None:
        self._recording, self._options = recording, options
        self._writer: LocalLog | ObjectLog | None = None
        self.recorder: Recorder | None = None
        self._committed: Position = {}
        self._other_logs: Position = {}

    def open(self) -> None:
        """Open the recording as its only recorder.  Raises RecordingInUse, RecordingDamaged, RecordingError."""
        self._recording.create(self._options.topic, self._options.channel, owned=True)
        try:
            self._writer = self._recording.take(own=True, wait=LOCK_WAIT, complete=self._options.fail_on_data_loss)
        except RecordingInUse as error:
            raise RecordingInUse(f"{error}; {ONE_OWNER}") from error
        self._committed = self._recording.committed()

    def begin_new_log(self, name: str) -> None:
        """Replace the log *name* before the start, because new rows would get numbers that the checkpoint used."""
        if self._writer is not None and self._writer.name == name and self.recorder is None:
            self._writer.close()
            self._recording.retire(name)
            self._writer = self._recording.take(own=True, wait=LOCK_WAIT)

    def start(self, receiver: Receiver, begin: Position) -> None:
        """Start to receive.  *begin* is the position after the last row of the query's batches."""
        if self._writer is None:
            raise RuntimeError("the recording is not open")
        reader = self._recording.reader(self._writer.name)
        recorder = Recorder(self._writer, reader, receiver, self._options.recorder(), make_room=self._make_room)
        recorder.start(begin.get(self._writer.name, 0))
        self._other_logs = self._recording.end()
        self.recorder = recorder
        self._remove_committed()

    def started(self) -> Recorder:
        """Return the recorder.  Raises RuntimeError before :meth:`start`."""
        if self.recorder is None:
            raise RuntimeError("the recorder does not run")
        return self.recorder

    def check(self) -> None:
        """Raise the error that ended the recorder, if any."""
        if self.recorder is not None:
            self.recorder.check()

    def expect(self, until_ns: int) -> None:
        """Treat messages published until *until_ns* (nanoseconds since 1970) as AvailableNow's backlog."""
        self.started().expect(until_ns)

    def last_row(self) -> int:
        """Return the number of the newest row that this query recorded."""
        return self.started().log.last

    def end(self, most: int | None = None) -> Position:
        """Return the last row of each log, without I/O.  *most* limits the last row of the query's own log."""
        writer = self.started().log
        last = writer.last if most is None else min(most, writer.last)
        return {**self._other_logs, writer.name: last} if last else dict(self._other_logs)

    def wait_for_rows(self, seconds: float) -> None:
        """Wait at most *seconds* for a row that is in no batch."""
        recorder = self.started()
        recorder.wait_for_rows(recorder.taken, seconds)

    def hand_over(self, position: Position) -> None:
        """Record that the rows up to *position* are in a batch."""
        recorder = self.started()
        recorder.hand_over(position.get(recorder.log.name, 0))

    def is_paused(self) -> bool:
        """Return whether receiving is paused because more than maxWaitingBytes are in no batch."""
        return self.started().is_paused()

    def commit(self, position: Position) -> None:
        """Store the committed position, and remove committed files if the index has the keys of their rows."""
        recorder = self.started()
        with recorder.lock:
            recorder.log.check_writer()
            if position != self._committed:
                self._recording.commit(position)
                self._committed = dict(position)
            self._remove_committed()

    def _remove_committed(self) -> None:
        recorder = self.started()
        for name, row in self._committed.items():
            reader = self._recording.reader(name)
            ages = reader.removable(row)
            if name == recorder.log.name:
                if len(ages) > KEPT_FILES or sum(age.size for age in ages) > KEPT_BYTES:
                    recorder.index()
                ages = [age for age in ages if age.last <= recorder.indexed]
            reader.remove(ages)

    def _make_room(self) -> int:
        """Remove all committed files, even if their keys are not in the index, and return their bytes."""
        removed = 0
        for name, row in self._committed.items():
            reader = self._recording.reader(name)
            ages = reader.removable(row)
            reader.remove(ages)
            removed += sum(age.size for age in ages)
        return removed

    def report(self) -> dict[str, Any]:
        """Return the recorder's part of the query's progress."""
        recorder = self.started()
        return {
            "topic": self._options.topic,
            "channel": self._options.channel,
            "inFlight": recorder.in_flight(),
            "missing": recorder.missing(),
            "trouble": recorder.trouble(),
            "connectionsLost": recorder.lost(),
            "copiesDropped": recorder.dropped(),
            "flushSeconds": round(recorder.flush_seconds, 3),
            "bytesOnDisk": sum(self._recording.reader(name).size() for name in self._recording.names()),
        }

    def stop(self) -> None:
        """Stop receiving and release the recording."""
        if self.recorder is not None:
            self.recorder.stop()
        elif self._writer is not None:
            self._writer.close()
