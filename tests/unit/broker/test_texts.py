"""What the broker prints and reads as Go does: JSON and queries; grants; options."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.broker import gojson
from gnsq_lite.broker.auth import AuthServerError, parse_grant
from gnsq_lite.broker.http import HTTPFailure, parse_query
from gnsq_lite.broker.options import BrokerOptions
from gnsq_lite.errors import OptionError

FIELDS = {"name": "str", "on": "bool", "count": "int", "rate": "int32"}


def test_json_is_compact_and_escapes_what_go_escapes() -> None:
    assert gojson.encode({"a": ["<&>é\u2028"], "b": None}) == b'{"a":["\\u003c\\u0026\\u003e\xc3\xa9\\u2028"],"b":null}'


def test_json_fields_have_zero_values_match_in_any_case_and_ignore_null() -> None:
    assert gojson.decode(b'{"NAME":"x","on":null,"other":[1]}', FIELDS) == {
        "name": "x",
        "on": False,
        "count": 0,
        "rate": 0,
    }
    assert gojson.decode(b"null", FIELDS)["name"] == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"{} x",
        b'{"name":1}',
        b'{"on":1}',
        b'{"on":"true"}',
        b'{"count":"1"}',
        b'{"count":1.0}',
        b'{"count":true}',
        b'{"count":NaN}',
        b'{"count":9223372036854775808}',
        b'{"rate":2147483648}',
        b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
)
def test_json_that_go_would_refuse_is_refused(data: bytes) -> None:
    with pytest.raises(gojson.NotDecodable):
        gojson.decode(data, FIELDS)


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("", {}),
        ("a=1&b=%20+x&a=2", {"a": ["1", "2"], "b": ["  x"]}),
        ("a", {"a": [""]}),
        ("a=b=c&&", {"a": ["b=c"]}),
        ("%61=%C3%A9", {"a": ["é"]}),
    ],
)
def test_queries_are_read_as_go_does(query: str, params: dict[str, list[str]]) -> None:
    assert parse_query(query) == params


@pytest.mark.parametrize("query", ["a=%zz", "a=%1", "a;b", "%=1"])
def test_a_query_that_go_cannot_read_is_an_invalid_request(query: str) -> None:
    with pytest.raises(HTTPFailure, match="INVALID_REQUEST"):
        parse_query(query)


# -- grants ---------------------------------------------------------------------------------------------------------


def answer(**fields: Any) -> dict[str, Any]:
    line = {"topic": "^t$", "channels": ["^c$"], "permissions": ["subscribe"]}
    return {"ttl": 10, "authorizations": [line], "identity": "me", "identity_url": "u", **fields}


@pytest.mark.rule("SEC-4")
def test_a_grant_says_what_is_allowed_and_until_when() -> None:
    grant = parse_grant(answer(), now=100.0)
    assert (grant.identity, grant.identity_url, grant.permission_count, grant.expires_at) == ("me", "u", 1, 110.0)
    assert grant.allows("t", "c")
    assert not grant.allows("t", "d")
    assert not grant.allows("tt", "c")
    assert not grant.allows("t", "")


def test_publishing_needs_a_channel_pattern_that_matches_nothing_as_in_nsqd() -> None:
    line = {"topic": "t", "channels": [".*"], "permissions": ["publish"]}
    grant = parse_grant(answer(authorizations=[line]), now=0.0)
    assert grant.allows("part of it", "")
    assert not grant.allows("t", "c")
    line["channels"] = ["c"]
    assert not parse_grant(answer(authorizations=[line]), now=0.0).allows("t", "")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        None,
        False,
        7,
        answer(ttl=0),
        answer(ttl="10"),
        answer(ttl=True),
        answer(authorizations=7),
        answer(authorizations=[7]),
        answer(authorizations=[{"permissions": ["admin"]}]),
        answer(authorizations=[{"topic": "("}]),
        answer(authorizations=[{"topic": 5}]),
        answer(authorizations=[{"channels": [5]}]),
        answer(identity=5),
    ],
)
def test_an_answer_that_is_no_grant_is_refused(wrong: Any) -> None:
    with pytest.raises(AuthServerError):
        parse_grant(wrong, now=0.0)


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("msg_timeout", 0.0),
        ("msg_timeout", float("nan")),
        ("max_msg_size", 0),
        ("max_rdy_count", 1.5),
        ("max_rdy_count", True),
        ("max_deflate_level", 10),
        ("tls_client_auth_policy", "maybe"),
        ("tls_required", "yes"),
        ("tls_required", True),
        ("tls_min_version", "ssl3.0"),
        ("tls_cert", "/nonexistent"),
        ("auth", 7),
        ("auth", "127.0.0.1"),
        ("auth", "ftp://127.0.0.1/auth"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        BrokerOptions(**{name: value})
    assert caught.value.name == name


def test_a_client_certificate_policy_requires_tls(tmp_path: Any) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("")
    options = BrokerOptions(tls_cert=str(pem), tls_key=str(pem), tls_client_auth_policy="require")
    assert options.tls_required is True
