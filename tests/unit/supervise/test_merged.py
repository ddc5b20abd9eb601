from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.supervise.merged import ERRORS, empty, merge
from tests.livedata import document, handler, nsqd, process


def together(*documents: dict[str, Any]) -> dict[str, Any]:
    return merge("1.0", 5.0, documents)


def test_counts_of_a_handler_are_added_up_over_processes() -> None:
    one = document(handlers=[handler("t", finished=15, in_flight=2, backoff_level=3), handler("u")])
    two = document(handlers=[handler("t", finished=20, in_flight=5, backoff_level=1, starved=True)])
    first, second = together(one, two)["handlers"]
    assert (first["finished"], first["in_flight"], first["backoff_level"], first["starved"]) == (35, 7, 3, True)
    assert (second["topic"], second["finished"]) == ("u", 0)


def test_the_worst_state_is_shown_and_paused_needs_all_processes_paused() -> None:
    paused = document(handlers=[handler("t", state="paused", paused=True)])
    fine = document(handlers=[handler("t")])
    blocked = document(handlers=[handler("t", state="blocked")])
    assert together(paused, paused)["handlers"][0]["paused"]
    merged = together(paused, fine)["handlers"][0]
    assert (merged["state"], merged["paused"]) == ("paused", False)
    assert together(paused, fine, blocked)["handlers"][0]["state"] == "blocked"


def test_the_last_errors_are_the_newest_of_all_processes() -> None:
    def error(at: float) -> dict[str, Any]:
        return {"type": "E", "text": "x", "at": at, "count": 1, "message": "", "process": 0}

    one = document(handlers=[handler("t", errors=[error(float(at)) for at in range(ERRORS)])])
    two = document(handlers=[handler("t", errors=[error(at + 0.5) for at in range(ERRORS)])])
    times = [each["at"] for each in together(one, two)["handlers"][0]["errors"]]
    assert times == sorted(times, reverse=True)
    assert (times[0], len(times)) == (ERRORS - 0.5, ERRORS)


def test_an_nsqd_is_listed_once_and_a_depth_is_the_sum_over_nsqds() -> None:
    one = document(handlers=[handler("t")], nsqds=[nsqd("a:1", "t", 5), nsqd("b:1", "t", 7), nsqd("c:1", "t", None)])
    two = document(handlers=[handler("t")], nsqds=[nsqd("a:1", "t", None)])
    merged = together(one, two)
    assert [(each["address"], each["ready"], each["depth"]) for each in merged["nsqds"]] == [
        *(("a:1", 10, 5), ("b:1", 5, 7), ("c:1", 5, None))
    ]
    assert merged["handlers"][0]["depth"] == 12
    assert together(two)["handlers"][0]["depth"] is None


def test_a_merged_document_can_be_merged_again() -> None:
    one = document(handlers=[handler("t", finished=1)], processes=[process(0)], nsqds=[nsqd("a:1", "t", 5)])
    assert together(together(one)) == together(one)
    assert together() == empty("1.0", 5.0)


@pytest.mark.parametrize(
    ("process_of_16", "others", "depth", "hung"),
    [
        ({"handlers_running": 1, "in_flight": 1, "oldest_handler": 29.0}, {}, 320, ""),
        ({"handlers_running": 1, "in_flight": 1, "oldest_handler": 45.0}, {}, 0, "warn"),
        ({"handlers_running": 1, "in_flight": 1, "oldest_handler": 45.0}, {}, None, "warn"),
        ({"handlers_running": 1, "in_flight": 1, "oldest_handler": 45.0}, {}, 320, "bad"),
        ({"handlers_running": 4, "in_flight": 5, "oldest_handler": 45.0, "queued": 1}, {}, None, "bad"),
        ({"handlers_running": 4, "in_flight": 4, "oldest_handler": 45.0}, {}, 0, "warn"),
        (
            {"handlers_running": 4, "in_flight": 4, "oldest_handler": 45.0},
            {"handlers_running": 4, "in_flight": 4},
            0,
            "bad",
        ),
    ],
)
def test_a_hung_call_is_amber_and_red_if_messages_wait_or_no_place_is_free(
    process_of_16: dict[str, Any], others: dict[str, Any], depth: int | None, hung: str
) -> None:
    places: dict[str, Any] = {"concurrency": 4, "max_in_flight": 4}
    documents = [document(handlers=[handler("t", **places, **process_of_16)], nsqds=[nsqd("a:1", "t", depth)])]
    documents += [document(handlers=[handler("t", **places, **others)]) for _ in range(3)]
    assert together(*documents)["handlers"][0]["hung"] == hung


def test_the_oldest_calls_of_all_processes_are_shown() -> None:
    def calls(*seconds: float) -> list[dict[str, Any]]:
        return [{"seconds": each, "id": "a" * 16} for each in seconds]

    one = document(handlers=[handler("t", running=calls(9.0, 3.0, 1.0))])
    two = document(handlers=[handler("t", running=calls(40.0, 8.0, 7.0))])
    found = together(one, two)["handlers"][0]["running"]
    assert [call["seconds"] for call in found] == [40.0, 9.0, 8.0, 7.0, 3.0]
