"""The load in its smallest form, and proof that it sees what it watches for."""

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
    ],
    ids=["connections", "large", "small", "topics"],
)
@pytest.mark.rule("HB-1")
def test_a_short_load_loses_nothing_and_answers_heartbeats(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    busy = ["--heartbeat", "2", "--patience", "10"]  # nsqd hangs up after two; the machine may do other things
    code = main([*arguments, *busy, "--every", "0.5", "--server", "embedded"])
    output = capsys.readouterr().out
    assert code == 0, output
    assert " 0 lost" in output
    assert " heartbeats answered" in output or "20000" in arguments
