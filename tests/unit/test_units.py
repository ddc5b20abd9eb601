"""Durations, sizes and rates, which are written alike everywhere."""

from __future__ import annotations

import pytest

from gnsq_lite import units
from gnsq_lite.spark.options import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1d", 86400.0),
        ("2 minutes", 120.0),
        ("1 hour 30 seconds", 3630.0),
        ("500 milliseconds", 0.5),
        ("10us", 1e-5),
    ],
)
def test_a_duration_is_read_in_commands_and_in_options_of_spark(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 x", "5mm", "-", "1h 2", "5 minute s", "\u0665m"])
def test_another_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.parse_duration(text)


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64k", 65536), ("16M", 1 << 24), ("1gb", 1 << 30)])
def test_a_size_is_in_units_of_1024(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(("text", "rate"), [("100/s", 100.0), ("30/m", 0.5), ("3600 / h", 1.0)])
def test_a_rate_is_a_number_per_second(text: str, rate: float) -> None:
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["100", "100/d", "/s", "x/s"])
def test_another_text_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_rate(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2026-11-21T00:00:00.5Z", "2026-11-21T00:00:00,500000z", "2026-11-21 00:00:00.5000000"),
        *("2026-11-21T04:00:00.5+04:00", "2026-11-21T04:00:00.5+0400", "2026-11-20T20:00:00.50-0400"),
    ],
)
def test_iso_times_are_read_alike_on_each_python(text: str) -> None:
    assert units.parse_time(text, 0.0) == 1_795_219_200.5


def test_a_date_is_midnight_in_utc_and_an_age_is_counted_from_now() -> None:
    assert (
        units.parse_time("2026-11-21", 0.0)
        == units.parse_time("20261121", 0.0)
        == units.parse_time("2026-11-21T00:00+0000", 0.0)
    )
    assert units.parse_time("2h", 10_000.0) == 2_800.0
