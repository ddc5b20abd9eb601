"""Parts of the tools: rates, escaped control characters, the table of channels."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, Group

from gnsq_lite.cli.output import visible
from gnsq_lite.cli.pub import Rate
from gnsq_lite.cli.statview import History, Row, table


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# -- where a call goes


# -- rate


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("slow", [0.0, 0.0015])
def test_a_rate_is_kept_although_waits_and_publishes_take_their_time(batch: int, slow: float) -> None:
    clock = Clock()
    rate = Rate(500, clock, lambda seconds: clock.sleep(seconds + 0.0004))
    began = clock.now
    for _ in range(2000 // batch):
        rate.take(batch)
        clock.now += slow
    assert 2000 / (clock.now - began) == pytest.approx(500, rel=0.02)


def test_a_pause_is_made_up_for_within_a_second_only() -> None:
    clock = Clock()
    rate = Rate(100, clock, clock.sleep)
    clock.now += 3600.0
    began = clock.now
    for _ in range(300):
        rate.take(1)
    assert clock.now - began == pytest.approx(2.0, abs=0.1)


# -- trouble that comes again


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
def test_controls_are_shown_and_do_nothing(text: str, shown: str) -> None:
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
    assert "and 44 channels" in shown[-1]


def test_a_name_cannot_command_a_terminal() -> None:
    text = "".join(lines([Row("t\x1b[2J", "c\r")], width=200))
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_rate_is_that_since_the_last_sample() -> None:
    history = History()
    for at, count in ((0.0, 100), (2.0, 300)):
        sample = [Row("t", "c", messages=count)]
        history.add(sample, at)
    assert sample[0].rate == 100.0


# -- JSON that is relayed
