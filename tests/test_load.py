"""A short load test loses no message and misses no heartbeat."""

from __future__ import annotations

import pytest

from tests.load import main


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
    # nsqd closes a connection after two unanswered heartbeats: four seconds, also on a busy machine
    code = main([*arguments, "--heartbeat", "2", "--every", "0.5", "--server", "embedded"])
    output = capsys.readouterr().out
    assert code == 0, output
    assert " 0 lost" in output
