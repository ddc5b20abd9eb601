"""Parts of the tools: escaped control characters, the table of channels."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, Group

from gnsq_lite.cli.output import visible
from gnsq_lite.cli.statview import History, Row, table

# -- what reaches a terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\tand\nlines", "plain text\tand\nlines"),
        ("\x1b[2J\x07\r\x7f\x00", "\\x1b[2J\\x07\\r\\x7f\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202etxt\u2028\ufeff", "\\u202etxt\\u2028\\ufeff"),
        ("d\u00e9j\u00e0 \u65e5\u672c \U0001f600", "d\u00e9j\u00e0 \u65e5\u672c \U0001f600"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


# -- the table of channels


def rows(count: int = 3, name: str = "a-topic-of-some-length") -> list[Row]:
    return [
        Row(f"{name}-{n}", "channel", depth=20_000_000 + n, messages=123_456_789, in_flight=200, clients=n, nsqds=3)
        for n in range(count)
    ]


def lines(*arguments: Any, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(Group(*table(*arguments, {}, width, height)))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 79, 80, 100, 132, 220])
def test_a_table_fits_its_width_and_cuts_no_number(width: int) -> None:
    shown = lines(rows(name="x" * 60), width=width)
    assert max(map(len, shown)) <= width
    assert any("20,000,002" in line for line in shown)
    assert "topic" in shown[0]
    assert "channel" in shown[0]
    assert any("no room for" in line for line in shown) == (width < 220)


def test_a_table_that_is_too_high_shows_the_deepest_channels_and_counts_the_others() -> None:
    shown = lines(rows(50), width=220, height=10)
    assert len(shown) <= 10
    assert any("a-topic-of-some-length-49" in line for line in shown)
    assert "44 more channels" in shown[-1]


def test_a_rate_counts_messages_since_the_last_sample() -> None:
    history = History()
    for at, count in ((0.0, 100), (2.0, 300)):
        sample = [Row("t", "c", messages=count)]
        history.add(sample, at)
    assert sample[0].rate == 100.0


def test_a_channel_has_a_state_in_words() -> None:
    history = History()
    first = [Row("t", "a", timed_out=5, clients=1), Row("t", "b", full=True), Row("t", "", paused=True)]
    history.add(first, 0.0)
    assert [row.state for row in first] == ["", "no consumers, drops", "paused"]
    assert "state" in lines(first, width=100)[0]
    second = [Row("t", "a", timed_out=6, clients=1)]
    history.add(second, 2.0)
    assert second[0].state == "times out"
    third = [Row("t", "a", timed_out=6, clients=1)]
    history.add(third, 4.0)
    assert third[0].state == ""
    assert "state" not in lines(third, width=100)[0]
