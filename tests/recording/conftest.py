"""The tests of recordings need pyarrow.  They need neither Spark nor Java."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests import servers

NO_ARROW = importlib.util.find_spec("pyarrow") is None
collect_ignore_glob = ["test_*.py"] if NO_ARROW else []
if not NO_ARROW:
    from tests.recording.places import make, place  # noqa: F401 - fixtures


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print that no test of a recording ran if pyarrow is missing."""
    if NO_ARROW:
        why = 'no pyarrow: pip install ".[recording]"'
        terminalreporter.write_line(f"tests/recording: left out: {why}", yellow=True)


@pytest.fixture
def nsqd() -> Iterator[servers.ServerHandle]:
    """Start an embedded nsqd, which other processes reach over TCP."""
    with servers.embedded_nsqd() as server:
        yield server
