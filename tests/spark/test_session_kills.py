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
@pytest.mark.parametrize("receiver", ["driver", "executors"])
def test_killed_at_any_moment_nothing_is_lost_and_replays_are_identical(
    nsqd: ServerHandle, tmp_path: Path, receiver: str
) -> None:
    stop_spark()  # the harness runs sessions of its own
    kills = 4 if receiver == "driver" else 2
    result = harness(tmp_path / "harness", nsqd, messages=12_000, kills=kills, seed=7, receiver=receiver, quiet=True)
    assert (result["kills"], result["lost"], result["replays_that_differ"]) == (kills, 0, 0)
    if receiver == "driver":
        assert result["duplicates"] == 0
    else:  # an executor killed between publishing a chunk and FIN: those come again, in flight at the most
        assert result["duplicates"] <= 2 * 2500 * kills
