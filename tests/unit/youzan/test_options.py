"""Youzan's options are checked at construction; filters become what IDENTIFY carries."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.youzan.commands import StartOffset
from gnsq_lite.youzan.options import ExtFilter, YouzanOptions


@pytest.mark.rule("YZ-16")
def test_a_filter_is_what_identify_carries() -> None:
    assert ExtFilter(key="city", value="杭州").identify() == {
        "type": 1,
        "inverse": False,
        "filter_ext_key": "city",
        "filter_data": "杭州",
    }
    assert ExtFilter(kind="regex", key="a", value="^x", inverse=True).identify()["type"] == 2
    assert ExtFilter(kind="glob", key="a", value="x*").identify()["type"] == 3
    assert ExtFilter(kind="list", pairs=[("a", "1"), ("b", "2")], match="all").identify() == {
        "type": 4,
        "inverse": False,
        "filter_ext_key": "all",
        "filter_data_list": [
            {"filter_ext_key": "a", "filter_data": "1"},
            {"filter_ext_key": "b", "filter_data": "2"},
        ],
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "other", "key": "a", "value": "b"},
        {"key": "a"},
        {"key": "", "value": "b"},
        {"value": "b"},
        {"key": "a", "value": ""},
        {"key": "a", "value": "b", "pairs": [("a", "b")]},
        {"kind": "list"},
        {"kind": "list", "key": "a", "pairs": [("a", "b")]},
        {"kind": "list", "pairs": ["ab"]},
        {"kind": "list", "pairs": [("a", "")]},
        {"kind": "list", "pairs": [("a", "b")], "match": "some"},
    ],
)
def test_a_filter_the_server_would_silently_drop_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        ExtFilter(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", []),
        ("partitions", "01"),
        ("partitions", [255]),
        ("partitions", [True]),
        ("ordered", "yes"),
        ("start_offset", "special:-1"),
        ("desired_tag", "a b"),
        ("ext_filter", {}),
        ("key_mapping", "rust"),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError):
        YouzanOptions(**{name: value})


def test_an_ordered_subscription_has_no_start_offset() -> None:
    with pytest.raises(OptionError, match="cannot be combined with ordered"):
        YouzanOptions(ordered=True, start_offset=StartOffset.end())
