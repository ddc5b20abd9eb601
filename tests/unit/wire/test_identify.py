from __future__ import annotations

import json
import pickle
import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.errors import OptionError, ProtocolError
from gnsq_lite.options import ConnectionOptions, TLSOptions
from gnsq_lite.version import __version__
from gnsq_lite.wire.identify import NEGOTIATED_KEYS, Negotiated, build_identify, parse_identify_reply
from tests.profiles import repeats
from tests.unit.wire.golden import golden

PLAIN = ConnectionOptions(output_buffer_timeout=None)


def asked(**options: Any) -> dict[str, Any]:
    made = build_identify(ConnectionOptions(**options), hostname_default="node7.example.org")
    values: dict[str, Any] = json.loads(made)
    return values


def reply(options: ConnectionOptions = PLAIN, **values: Any) -> Negotiated:
    return parse_identify_reply(json.dumps(values).encode(), options)


# -- the JSON of IDENTIFY (NEG-1)


@pytest.mark.rule("NEG-1")
def test_without_options_it_names_the_client_and_asks_for_no_feature() -> None:
    assert asked() == {
        "client_id": "node7",
        "hostname": "node7.example.org",
        "user_agent": f"gnsq_lite/{__version__}",
        "feature_negotiation": True,
        "heartbeat_interval": 30000,
        "output_buffer_timeout": 25,
    }


@pytest.mark.rule("NEG-1")
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"client_id": "me"}, {"client_id": "me", "hostname": "node7.example.org"}),
        ({"hostname": "h"}, {"client_id": "node7", "hostname": "h"}),
        ({"client_id": ""}, {"client_id": ""}),
        ({"user_agent": "app/1"}, {"user_agent": "app/1"}),
        ({"heartbeat_interval": 1.0}, {"heartbeat_interval": 1000}),
        ({"heartbeat_interval": 1.2345}, {"heartbeat_interval": 1234}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": -1}, {"output_buffer_size": -1}),
        ({"output_buffer_timeout": 0.001}, {"output_buffer_timeout": 1}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": -1}),
        ({"tls": TLSOptions()}, {"tls_v1": True}),
        ({"tls": ssl.create_default_context()}, {"tls_v1": True}),
        ({"compression": "snappy"}, {"snappy": True}),
        ({"compression": "deflate"}, {"deflate": True, "deflate_level": 6}),
        ({"compression": "deflate", "deflate_level": 3}, {"deflate": True, "deflate_level": 3}),
        ({"sample_rate": 1}, {"sample_rate": 1}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"msg_timeout": 1.0}, {"msg_timeout": 1000}),
        ({"msg_timeout": 86400}, {"msg_timeout": 86400000}),
        (
            {"extra_identify": {"extend_support": True, "desired_tag": "t"}},
            {"extend_support": True, "desired_tag": "t"},
        ),
    ],
)
def test_an_option_becomes_its_key_in_the_servers_unit(options: dict[str, Any], keys: dict[str, Any]) -> None:
    values = asked(**options)
    assert {key: values[key] for key in keys} == keys


@pytest.mark.rule("NEG-1")
@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"output_buffer_timeout": None}, {"output_buffer_timeout", "output_buffer_size"}),
        ({"compression": "snappy"}, {"deflate", "deflate_level", "tls_v1"}),
        ({"compression": "deflate"}, {"snappy"}),
        ({"deflate_level": 9}, {"deflate", "deflate_level"}),
        ({"sample_rate": 0}, {"sample_rate", "msg_timeout"}),
    ],
)
def test_what_is_not_set_is_not_sent(options: dict[str, Any], absent: set[str]) -> None:
    assert not absent & asked(**options).keys()


@pytest.mark.rule("SEC-2")
def test_both_codecs_can_never_be_asked_for() -> None:
    for first, second in (("snappy", "deflate"), ("deflate", "snappy")):
        with pytest.raises(OptionError, match="extra_identify"):
            asked(compression=first, extra_identify={second: True})


@pytest.mark.rule("NEG-1")
@pytest.mark.parametrize("key", sorted(NEGOTIATED_KEYS))
def test_extra_keys_cannot_get_past_the_checks_of_the_options(key: str) -> None:
    with pytest.raises(OptionError, match="extra_identify"):
        asked(extra_identify={key: 1})


def test_the_secret_is_not_part_of_it() -> None:
    assert b"hush" not in build_identify(ConnectionOptions(auth_secret="hush"), hostname_default="h")


def test_a_host_name_outside_ascii_is_escaped() -> None:
    made = build_identify(PLAIN, hostname_default="caf\u00e9\nx")
    assert made.isascii()
    assert b"\n" not in made
    assert json.loads(made)["hostname"] == "caf\u00e9\nx"


# -- what is granted (NEG-2, NEG-3)


@pytest.mark.rule("NEG-2")
def test_a_plain_ok_means_the_defaults_and_no_features() -> None:
    got = parse_identify_reply(b"OK", ConnectionOptions(heartbeat_interval=5.0))
    assert not got.negotiated
    assert got.max_rdy_count == 2500
    assert (got.msg_timeout, got.max_msg_timeout, got.heartbeat_interval) == (60.0, 900.0, 5.0)
    assert not any((got.tls_v1, got.snappy, got.deflate, got.auth_required, got.sample_rate))


@pytest.mark.rule("NEG-3")
def test_the_reply_of_a_real_nsqd_is_read() -> None:
    got = parse_identify_reply(golden("identify_reply")[8:], PLAIN)
    assert got == Negotiated(
        negotiated=True,
        heartbeat_interval=30.0,
        max_rdy_count=2500,
        version="1.3.0",
        max_msg_timeout=900.0,
        msg_timeout=60.0,
        deflate_level=6,
        raw=json.loads(golden("identify_reply")[8:]),
    )


@pytest.mark.rule("NEG-3")
@pytest.mark.rule("SEC-5")
def test_the_values_of_the_reply_rule_and_are_seconds() -> None:
    options = ConnectionOptions(sample_rate=10, msg_timeout=5, compression="deflate")
    got = reply(
        options,
        max_rdy_count=7,
        version="2",
        max_msg_timeout=1500,
        msg_timeout=1,
        deflate=True,
        deflate_level=2,
        sample_rate=50,
        auth_required=True,
    )
    assert (got.max_rdy_count, got.version, got.max_msg_timeout, got.msg_timeout) == (7, "2", 1.5, 0.001)
    assert (got.deflate, got.deflate_level, got.sample_rate, got.auth_required) == (True, 2, 50, True)


@pytest.mark.rule("NEG-3")
def test_keys_may_be_missing_and_others_are_kept() -> None:
    got = reply(desired_tag="tagA")
    assert (got.negotiated, got.max_rdy_count, got.version) == (True, 2500, "")
    assert got.raw == {"desired_tag": "tagA"}


# -- hostile replies

NUMBERS = {
    "max_rdy_count": (0, 2**63 - 1),
    "max_msg_timeout": (1, 2**63 - 1),
    "msg_timeout": (1, 2**63 - 1),
    "deflate_level": (0, 9),
    "sample_rate": (0, 99),
}


@pytest.mark.rule("NEG-3")
@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_held_to_its_range_on_both_sides(key: str) -> None:
    low, high = NUMBERS[key]
    for good in (low, high):
        reply(**{key: good})
    for bad in (low - 1, high + 1, 10**4000, -(10**4000)):
        with pytest.raises(ProtocolError, match=key):
            parse_identify_reply(b'{"%b": %b}' % (key.encode(), str(bad).encode()), PLAIN)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("bad", [True, False, None, "1", 1.0, 1.5, [1], {"a": 1}])
def test_a_number_that_is_none_is_refused(key: str, bad: object) -> None:
    with pytest.raises(ProtocolError, match=key):
        reply(**{key: bad})


@pytest.mark.parametrize("key", ["tls_v1", "snappy", "deflate", "auth_required"])
@pytest.mark.parametrize("bad", [0, 1, None, "true", []])
def test_a_flag_that_is_none_is_refused(key: str, bad: object) -> None:
    with pytest.raises(ProtocolError, match=key):
        reply(**{key: bad})


def test_a_version_is_text_that_can_be_logged() -> None:
    with pytest.raises(ProtocolError, match="version"):
        reply(version=1)
    assert reply(version="1\n\x1b[2J" + "x" * 500).version.isprintable()
    assert len(reply(version="x" * 500).version) == 256


@pytest.mark.rule("NEG-4")
@pytest.mark.parametrize(
    ("feature", "options"),
    [
        ("tls_v1", PLAIN),
        ("snappy", PLAIN),
        ("deflate", PLAIN),
        ("snappy", ConnectionOptions(compression="deflate")),
        ("deflate", ConnectionOptions(compression="snappy")),
    ],
)
def test_a_feature_that_was_not_asked_for_is_not_accepted(feature: str, options: ConnectionOptions) -> None:
    with pytest.raises(ProtocolError, match=f"enabled {feature} without a request"):
        reply(options, **{feature: True})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok",
        b"OK\n",
        b"OK ",
        b"null",
        b"[]",
        b'"OK"',
        b"{",
        b"\xff{}",
        b'{"max_rdy_count": NaN}',
        b'{"x": NaN}',
        b'{"x": Infinity}',
        b'{"x": -Infinity}',
        b'{"max_rdy_count": 1e999}',
        b"{}{}",
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"max_rdy_count": ' + b"9" * 10_000 + b"}",
        json.dumps({"x": 1}).encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_reply_is_an_identify_error(body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_identify_reply(body, PLAIN)
    assert len(str(caught.value)) < 500


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*NUMBERS, "tls_v1", "snappy", "deflate", "auth_required", "version", "other"])


@settings(max_examples=repeats(100))
@given(st.one_of(st.binary(max_size=50), st.dictionaries(KEYS, VALUES).map(lambda d: json.dumps(d).encode())))
def test_any_bytes_are_negotiated_or_an_identify_error(body: bytes) -> None:
    try:
        got = parse_identify_reply(body, PLAIN)
    except ProtocolError:
        return
    assert 0 <= got.max_rdy_count < 2**63
    assert 0 < got.msg_timeout < float("inf")
    assert 0 < got.max_msg_timeout < float("inf")
    assert not any((got.tls_v1, got.snappy, got.deflate))


def test_what_was_negotiated_can_be_sent_between_processes() -> None:
    got = reply(max_rdy_count=5)
    assert pickle.loads(pickle.dumps(got)) == got
