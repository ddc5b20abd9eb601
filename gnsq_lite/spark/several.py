"""The recordings that a query reads as one."""

from __future__ import annotations

from collections.abc import Callable

from gnsq_lite.recording.errors import RecordingError
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.logs import Bounds, LogReader
from gnsq_lite.recording.recording import Position, Recording
from gnsq_lite.spark.options import SourceOptions


class Recordings:
    """The recordings that the option ``recording`` names, or that are directly in a place that is no recording.

    Names of logs are random, so a position may have logs of several recordings.  The constructor does no I/O.
    """

    def __init__(self, options: SourceOptions, files: Files | None = None) -> None:
        self.url = options.recording
        self._options, self._files = options, files
        self._named = self._recordings(options.places)
        self._each = self._named if options.records else []
        self._homes: dict[str, Recording] = {}

    def _recordings(self, urls: list[str]) -> list[Recording]:
        return [Recording(url, self._options.storage, files=self._files) for url in urls]

    @property
    def each(self) -> list[Recording]:
        """The recordings.  The first call looks for them."""
        if not self._each:
            inside = [self._recordings([] if one.exists() else one.inside()) or [one] for one in self._named]
            self._each = [one for each in inside for one in each]
        return self._each

    def check(self) -> None:
        """Raise MissingExtra or OptionError if a store's settings cannot work."""
        for one in self._named:
            one.check()

    def assert_exist(self) -> None:
        """Raise RecordingError if there is no recording."""
        for one in self.each:
            if not one.exists():
                raise RecordingError(
                    f"there is no recording at {one.url}: start gnsq-lite record, or name a topic and a channel"
                )

    def home(self, name: str) -> Recording:
        """Return the recording of a log that :meth:`bounds` has returned, or else the first recording."""
        return self._homes.get(name, self.each[0])

    def reader(self, name: str) -> LogReader:
        """Return the reader of a log."""
        return self.home(name).reader(name)

    def bounds(self) -> dict[str, Bounds]:
        """Return the first and the last row of each log."""
        found = [(one, one.bounds()) for one in self.each]
        self._homes = {name: one for one, bounds in found for name in bounds}
        return {name: one for _, bounds in found for name, one in bounds.items()}

    def position(self, of: Callable[[Recording], Position]) -> Position:
        """Return one position of the positions *of* all recordings."""
        return {name: row for one in self.each for name, row in of(one).items()}
