"""The default hang_timeout of a supervised Worker follows the options of its handlers."""

from __future__ import annotations

import pytest

from gnsq_lite import Worker
from gnsq_lite.worker.supervised import hang_timeout


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ([], 90.0),
        ([{}], 90.0),
        ([{"heartbeat_interval": 1.0}], 32.0),
        ([{"heartbeat_interval": 1.0, "time_limit": 5.0}], 35.0),
        ([{"heartbeat_interval": 1.0}, {"heartbeat_interval": 20.0}], 70.0),
        ([{"heartbeat_interval": 1.0}, {}], 90.0),
        ([{"time_limit": 100.0}], 130.0),
    ],
)
def test_the_longest_time_limit_or_two_heartbeats_count(options: list[dict[str, float]], seconds: float) -> None:
    worker = Worker()
    for number, each in enumerate(options):
        worker.handler(f"t{number}", "ch", **each)(print)  # type: ignore[arg-type]
    assert hang_timeout(worker) == seconds


def test_a_heartbeat_of_the_worker_counts_for_its_handlers() -> None:
    worker = Worker(heartbeat_interval=1.0, time_limit=2.0)
    worker.handler("t", "ch")(print)
    assert hang_timeout(worker) == 32.0
