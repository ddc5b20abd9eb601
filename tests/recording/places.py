"""Places of recordings for tests: a directory, and an object store that is a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording import Recording, lease, logs, parquet
from gnsq_lite.recording import recording as module
from gnsq_lite.recording.objectstore import ObjectStore
from tests.recording.fakes import FakeMessage


class FolderStore(ObjectStore):
    """obstore's own store of a folder."""

    def _opened(self) -> Any:
        from obstore.store import LocalStore

        if self._store is None:
            self._store = LocalStore(self.url.replace("s3://bucket", os.environ["GNSQ_TEST_FOLDER"]), mkdir=True)
        return self._store

    def below(self, prefix: str) -> FolderStore:
        found = FolderStore(self.url, self._given, self._prefix + prefix)
        found._store = self._opened()
        return found


@pytest.fixture(params=["directory", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Path or URL of a recording that does not exist yet."""
    if request.param == "objects":
        pytest.importorskip("obstore")
        monkeypatch.setenv("GNSQ_TEST_FOLDER", str(tmp_path / "bucket"))
        monkeypatch.setattr(module.objectstore, "ObjectStore", FolderStore)
        monkeypatch.setattr(lease, "LEASE", 0.4)
    return str(tmp_path / "recording") if request.param == "directory" else "s3://bucket/recording"


@pytest.fixture
def make(place: str) -> Callable[..., Recording]:
    """Opens the same recording, as another process would."""

    def made(**more: Any) -> Recording:
        found = Recording(place, **more)
        found.create("t", "c")
        return found

    return made


def sealed_folder(place: str) -> Path:
    """Return the folder that other tools read."""
    return Path(place.replace("s3://bucket", os.environ.get("GNSQ_TEST_FOLDER", ""))) / parquet.FOLDER


def in_folder(place: str) -> list[int]:
    """Read the folder as another tool does."""
    return [int(body) for body in pyarrow.dataset.dataset(sealed_folder(place)).to_table().column("body").to_pylist()]


def batch(*numbers: int) -> logs.PartitionRows:
    return -1, to_batch([FakeMessage(n, b"%d" % n) for n in numbers])


def bodies(recording: Recording, **how: Any) -> list[int]:
    return [int(body) for one in recording.batches(**how) for body in one.column("body").to_pylist()]
