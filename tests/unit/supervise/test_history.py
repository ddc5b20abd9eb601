"""The counts of the last ten minutes that the supervisor keeps for the charts of the live page."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gnsq_lite.supervise.history import EVERY, SAMPLES, History
from tests.livedata import document, handler


def test_the_samples_of_the_last_ten_minutes_are_kept_the_oldest_first() -> None:
    numbers = itertools.count()
    history = History(lambda: document(handlers=[handler("t", finished=next(numbers), in_flight=3)]))
    assert history.document() == {"samples": []}
    for _ in range(SAMPLES + 5):
        history.sample()
    samples = history.document()["samples"]
    assert SAMPLES * EVERY == 600
    assert [each["handlers"][0]["finished"] for each in samples] == list(range(5, SAMPLES + 5))
    counts = {"failures": 0, "given_up": 0, "in_flight": 3}
    assert samples[0]["handlers"] == [{"topic": "t", "channel": "ch", "finished": 5, **counts}]


def test_no_sample_is_kept_before_a_process_has_answered() -> None:
    history = History(document)
    history.sample()
    assert history.document() == {"samples": []}


def test_sampling_goes_on_after_an_error_and_ends_with_the_supervisor(caplog: pytest.LogCaptureFixture) -> None:
    documents = iter([document(handlers=[handler("t")]), None, document(handlers=[handler("t")])])
    pauses: list[float] = []

    def read() -> dict[str, Any]:
        found = next(documents)
        if found is None:
            raise ValueError("not JSON")
        return found

    history = History(read)
    history.sample_until(lambda: len(pauses) == 3, pauses.append)
    assert pauses == [EVERY] * 3
    assert len(history.document()["samples"]) == 2
    assert "charts could not be read" in caplog.text
