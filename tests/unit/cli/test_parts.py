"""The parts of the tools that decide: destinations, rates, what is told, what a table shows, which bytes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from gnsq_lite.cli.hostpool import FIRST_PAUSE, LONGEST_PAUSE, Pool, Timings
from gnsq_lite.cli.jsonfilter import Filter, written
from gnsq_lite.cli.output import visible
from gnsq_lite.cli.pub import Rate
from gnsq_lite.cli.repeats import Once
from gnsq_lite.cli.statview import History, Lines, Row, table
from gnsq_lite.http.hook import filled


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# -- where a call goes


def test_round_robin_takes_each_in_turn_whatever_failed() -> None:
    pool = Pool(3, "round-robin")
    pool.mark(1, ok=False, seconds=0.1)
    assert [pool.choose() for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_hostpool_leaves_alone_what_failed_for_longer_each_time() -> None:
    clock = Clock()
    pool = Pool(2, "hostpool", clock)
    pool.mark(0, ok=False, seconds=0.1)
    assert {pool.choose() for _ in range(5)} == {1}
    pause = FIRST_PAUSE
    for _ in range(8):
        clock.now += pause + 0.001
        assert sorted(pool.choose() for _ in range(3)) == [0, 1, 1]  # tried once
        pool.mark(0, ok=False, seconds=0.1)
        pause = min(pause * 2, LONGEST_PAUSE)
        clock.now += pause - 1.0
        assert {pool.choose() for _ in range(3)} == {1}
        clock.now -= pause - 1.0
    clock.now += pause + 0.001
    pool.choose(), pool.choose()
    pool.mark(0, ok=True, seconds=0.1)
    assert {pool.choose() for _ in range(2)} == {0, 1}


def test_hostpool_turns_to_all_where_all_have_failed() -> None:
    pool = Pool(3, "hostpool", Clock())
    for number in range(3):
        pool.mark(number, ok=False, seconds=0.1)
    assert [pool.choose() for _ in range(4)] == [0, 1, 2, 0]


def test_epsilon_greedy_prefers_the_fast_and_still_tries_the_others() -> None:
    chances = iter([n % 997 / 997 for n in range(0, 997 * 400, 389)])
    pool, taken = Pool(2, "epsilon-greedy", Clock(), lambda: next(chances)), [0, 0]
    for _ in range(400):
        number = pool.choose()
        taken[number] += 1
        pool.mark(number, ok=True, seconds=0.9 if number == 0 else 0.1)
    assert taken[1] > 3 * taken[0] > 0


def test_epsilon_greedy_forgets_after_five_minutes_and_leaves_failures_alone() -> None:
    clock = Clock()
    pool = Pool(2, "epsilon-greedy", clock, lambda: 0.99)
    pool.mark(0, ok=True, seconds=0.1)
    assert {pool.choose() for _ in range(3)} == {0}  # the other is not known, and chance does not ask for it
    clock.now += 301.0
    assert {pool.choose() for _ in range(2)} == {0, 1}
    pool.mark(1, ok=True, seconds=0.1)
    pool.mark(1, ok=False, seconds=0.1)
    assert {pool.choose() for _ in range(3)} == {0}


def test_times_are_told_after_so_many_calls() -> None:
    said: list[str] = []
    timings = Timings(4, "aggregate", said.append)
    for milliseconds in (10, 20, 30, 40, 1, 1, 1):
        timings.add(milliseconds / 1000)
    assert said == ["[aggregate]: finished 4 - 99th: 40.00ms - 95th: 40.00ms - avg: 25.00ms"]
    Timings(0, "x", said.append).add(1.0)
    assert len(said) == 1


def test_a_body_in_a_url_is_quoted_as_in_a_form() -> None:
    assert filled("http://h/%%20?q=%s&r=1", b"a b&\xff~/") == "http://h/%20?q=a+b%26%FF~%2F&r=1"


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


def record(text: str, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("name", logging.WARNING, "path", 1, text, (), info)


def test_the_same_trouble_is_told_once_a_minute_with_its_count() -> None:
    clock = Clock()
    once = Once(60.0, clock)
    full = OSError(28, "No space left on device", "/data/x.log")
    assert [once.filter(record(f"message {n} failed", full)) for n in range(5)] == [True, False, False, False, False]
    assert once.filter(record("message 5 failed", OSError(28, "No space left on device", "/data/y.log")))
    clock.now += 60.0
    told = record("message 6 failed", full)
    assert once.filter(told)
    assert told.getMessage() == "message 6 failed (4 more like it since)"
    assert once.rest() == []


def test_what_was_not_told_at_the_end_is_counted() -> None:
    once = Once(60.0, Clock())
    for _ in range(3):
        once.filter(record("words"))
    assert once.rest() == ["2 more like it: words"]
    assert once.rest() == []


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


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 132, 200])
def test_a_table_fits_and_cuts_no_number(width: int) -> None:
    lines = table(rows(name="x" * 60), {}, width)
    assert max(len(line) for line in lines) <= width
    if width >= 40:
        assert "20,000,002" in lines[3].plain
    head = lines[0].plain
    assert all(name in head for name in ("topic", "channel")) or width < 40
    assert ("clients" in head and "msgs/s" in head and "in flight" in head) == (width >= 79)
    left_out = [line.plain for line in lines if "no room for" in line.plain]
    assert bool(left_out) == (width < 200)


def test_a_table_for_a_program_has_everything() -> None:
    (head, line, legend) = table(rows(1), {}, 1000)
    for name in ("depth", "mem", "disk", "in flight", "deferred", "requeued", "timed out", "messages", "last samples"):
        assert name in head.plain
    assert "a-topic-of-some-length-0" in line.plain
    assert "red" in legend.plain


def test_a_table_that_is_too_high_shows_the_deepest_and_counts_the_rest() -> None:
    lines = [line.plain for line in table(rows(50), {}, 200, 10)]
    assert len(lines) <= 10
    assert "a-topic-of-some-length-49" in lines[-3]
    assert "44 channels" in lines[-1]


def test_a_name_cannot_command_a_terminal() -> None:
    text = "".join(line.plain for line in table([Row("t\x1b[2J", "c\r")], {}, 100))
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_rate_is_that_since_the_last_sample() -> None:
    history = History()
    for at, count in ((0.0, 100), (2.0, 300)):
        sample = [Row("t", "c", messages=count)]
        history.add(sample, at)
    assert sample[0].rate == 100.0


def test_nsq_stats_lines_repeat_their_heads() -> None:
    lines = Lines(2.0)
    found = [lines.add(Row("t", "c", messages=10 * n, depth=n)) for n in range(27)]
    assert [len(each) for each in found] == [2, *[1] * 24, 3, 1]
    assert found[1][0].split("|")[0].split() == ["5", "4"]


# -- JSON that is relayed


@pytest.mark.parametrize(
    ("value", "passes"),
    [("7", True), (7, True), (7.0, True), ("7.0", False), (8, False), (True, False), (None, False), ([7], False)],
)
def test_a_required_value_is_compared_as_text_or_as_a_number(value: Any, passes: bool) -> None:
    body = json.dumps({"kind": value}).encode()
    assert (Filter("kind", "7", ()).apply(body) is not None) == passes


def test_json_is_written_as_go_writes_it() -> None:
    record = {"z": 1.0, "a": [2.5, 1e3, {"b": None}], "t": "<\u00e9&\u2028>"}
    assert written(record) == (b'{"a":[2.5,1000,{"b":null}],"t":"\\u003c\xc3\xa9\\u0026\\u2028\\u003e","z":1}')
