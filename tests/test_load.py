"""The load in its smallest form: nothing is lost, no heartbeat is missed, and growth is a fault."""

from __future__ import annotations

import pytest

from tests.load import main
from tests.load_generator import Result, Sample


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "0.08", "--connections", "2"],
        ["--minutes", "0.08", "--connections", "2", "--body", "1048576"],
        ["--minutes", "1", "--messages", "20000", "--body", "16"],
        ["--minutes", "0.08", "--connections", "2", "--topics", "200"],
        ["--minutes", "0.1", "--connections", "3", "--resets"],
    ],
    ids=["connections", "large", "small", "topics", "resets"],
)
@pytest.mark.rule("HB-1")
def test_a_short_load_loses_no_message_and_no_connection(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # nsqd hangs up after two heartbeats without an answer: four seconds on a busy machine
    code = main([*arguments, "--heartbeat", "2", "--every", "0.5", "--server", "embedded"])
    output = capsys.readouterr().out
    assert code == 0, output
    assert " 0 lost" in output


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        ({"descriptors": 31}, "descriptors"),
        ({"threads": 11}, "threads"),
        ({"handlers": 1}, "1 threads run handlers"),
        ({"rss": 80_000}, "memory"),
        ({"blocks": 40_010}, "blocks"),
    ],
)
def test_growth_is_a_fault(last: dict[str, int], fault: str) -> None:
    usual = Sample(0.0, 1, 50_000, 20, 5, 5, 9)
    assert Result([usual] * 4).faults() == []
    (found,) = Result([usual] * 3 + [Sample(**{**vars(usual), "at": 60.0, **last})]).faults()
    assert fault in found
