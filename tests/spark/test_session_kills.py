"""A short run of the kill harness; ``python -m tests.spark.kill_harness`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import ServerHandle
from tests.spark.conftest import stop_spark
from tests.spark.kill_harness import harness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


@pytest.mark.rule("PIPE-2")
@pytest.mark.rule("PIPE-3")
def test_killed_at_any_moment_nothing_is_lost_and_replays_are_identical(nsqd: ServerHandle, tmp_path: Path) -> None:
    stop_spark()  # the harness runs sessions of its own
    result = harness(tmp_path / "harness", nsqd, messages=12_000, kills=4, seed=7, quiet=True)
    told = [result[name] for name in ("kills", "lost", "duplicates", "replays_that_differ")]
    assert told == [4, 0, 0, 0]
