"""The recipes of docs/recordings.rst, and a sealed recording on which they run."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording import Recording
from gnsq_lite.recording.sealer import seal_log
from tests import docblocks
from tests.programs import ROOT
from tests.recording.fakes import FakeMessage

BLOCKS = [source for _, source in docblocks.blocks(ROOT / "docs" / "recordings.rst")]
NOW_NS = int(time.time()) * 10**9


def recipe(text: str) -> str:
    (found,) = [block for block in BLOCKS if text in block]
    assert len(found.strip().splitlines()) <= 6
    return found


class Place:
    """A sealed recording of the topic clicks, to which rows can be added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recording = Recording(str(path))
        self.recording.create("clicks", "archive")
        self.recording.begin_sealing()
        self.writer: Any = self.recording.take()
        self.writer.seals = 1
        self.rows = 0

    def add(self, count: int) -> None:
        rows = range(self.rows, self.rows + count)
        messages = [FakeMessage(n, b'{"user": "u%d"}' % n, timestamp_ns=NOW_NS + n * 1000) for n in rows]
        self.writer.append([(-1, to_batch(messages))])  # type: ignore[list-item]
        self.writer.complete()
        seal_log(self.recording, self.writer, self.writer.last)
        self.rows += count

    def run(self, source: str, **names: Any) -> tuple[str, dict[str, Any]]:
        """Run a block of the page in this place, and return its output and its variables."""
        source = source.replace("/var/lib/clicks", str(self.path)).replace("/var/lib/checkpoint", f"{self.path}-cp")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(source, "recordings.rst", "exec"), names)
        return said.getvalue().strip(), names
