"""Sources with a fault, for real sessions.  Spark's processes import this module: it needs no test library."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from gnsq_lite.recording.files import Files
from gnsq_lite.spark.source import NsqDataSource
from gnsq_lite.spark.stream import NsqStreamReader


class FillableDisk(Files):
    """A disk that is full while the file FULL is in the directory written to."""

    def append_all(self, fd: int, buffers: list[Any]) -> None:
        self.append(fd, b"".join(buffers))

    def append(self, fd: int, data: bytes) -> None:
        file = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if any((folder / "FULL").exists() for folder in file.parents):
            super().append(fd, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(fd, data)


class FillableReader(NsqStreamReader):
    files = FillableDisk


class FillableSource(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq-fillable"

    def streamReader(self, schema: Any) -> Any:
        return FillableReader(self._checked(schema))
