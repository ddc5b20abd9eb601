from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest

from gnsq_lite.supervise.access import LONGEST, Refused, access, asked, body_length
from gnsq_lite.supervise.live_page import live_page

HOSTS = ["127.0.0.1:9100", "10.1.2.3", "[::1]:9100", "localhost:9100", "LocalHost.", "worker1:9100", "worker1.:9100"]
GOOD = {"Host": "127.0.0.1:1", "Authorization": "Bearer sesame", "Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize("host", HOSTS)
def test_the_page_is_served_by_address_and_by_the_names_allowed(host: str) -> None:
    access("0.0.0.0", ["Worker1"], None).check_host(host)


@pytest.mark.parametrize(
    "host",
    [None, "", ":9100", "evil.example", "127.0.0.1.evil.example:9100", "localhost.evil.example", "[evil]:1", "1"],
)
def test_a_name_that_may_have_been_made_to_lead_here_is_refused(host: str | None) -> None:
    with pytest.raises(Refused) as refused:
        access("127.0.0.1", ["worker1"], None).check_host(host)
    assert refused.value.status == HTTPStatus.FORBIDDEN


def test_who_has_the_token_may_act() -> None:
    access("127.0.0.1", (), "sesame").check_act(GOOD)
    access("127.0.0.1", (), "sesame").check_act({**GOOD, "Origin": "http://127.0.0.1:1"})


@pytest.mark.parametrize("written", [str.lower, str.upper])
def test_names_of_headers_may_be_in_any_case(written: Callable[[str], str]) -> None:
    def act(headers: dict[str, str]) -> None:
        access("127.0.0.1", (), "sesame").check_act({written(name): value for name, value in headers.items()})

    act({**GOOD, "Origin": "http://127.0.0.1:1"})
    with pytest.raises(Refused, match="another site"):
        act({**GOOD, "Origin": "http://evil.example"})


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"Authorization": "Bearer sesamf"}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": "Bearer "}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": "Bearer s\u00e9same"}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": "Basic sesame"}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": ""}, HTTPStatus.UNAUTHORIZED),
        ({"Origin": "http://evil.example"}, HTTPStatus.FORBIDDEN),
        ({"Origin": "null"}, HTTPStatus.FORBIDDEN),
        ({"Content-Type": "text/plain"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    ],
)
def test_who_has_not_is_refused(changed: dict[str, str], status: HTTPStatus) -> None:
    with pytest.raises(Refused) as refused:
        access("127.0.0.1", (), "sesame").check_act({**GOOD, **changed})
    assert refused.value.status == status


def test_nobody_may_act_where_there_is_no_token() -> None:
    with pytest.raises(Refused, match="read-only"):
        access("127.0.0.1", (), None).check_act({**GOOD, "Authorization": "Bearer None"})


@pytest.mark.parametrize("header", [None, "", "-1", "x", "1e3", "\u0665", str(LONGEST + 1), "9" * 5000])
def test_a_body_without_a_length_or_too_long_is_not_read(header: str | None) -> None:
    with pytest.raises(Refused):
        body_length(header)


def test_a_body_of_the_longest_is_read() -> None:
    assert body_length(str(LONGEST)) == LONGEST


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], "drain", {}, {"action": "kill"}, {"action": ["drain"]}, {"action": "pause"}),
        {"action": "pause", "topic": "t", "channel": 5},
    ],
)
def test_what_is_no_request_is_refused(data: Any) -> None:
    with pytest.raises(Refused) as refused:
        asked(data)
    assert refused.value.status == HTTPStatus.BAD_REQUEST


def test_a_request_is_an_action_and_its_handler() -> None:
    assert asked({"action": "resume", "topic": "t", "channel": "ch"}) == ("resume", "t", "ch")
    assert asked({"action": "drain", "topic": 5}) == ("drain", "", "")


def test_the_page_runs_its_own_script_and_style_and_nothing_else() -> None:
    body, headers = live_page()
    policy = headers["Content-Security-Policy"]
    for kind in (b"script", b"style"):
        (inline,) = re.findall(rb"<%b>(.*?)</%b>" % (kind, kind), body, re.S)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(inline).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store"
