from __future__ import annotations

import dataclasses
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import Reader, Writer, options
from gnsq_lite.consume import settings as consume_settings
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.options import BackoffOptions, ConnectionOptions, TLSOptions, format_address, parse_address
from gnsq_lite.publish import settings as publish_settings
from tests.certs import Certificates

CLASSES = sorted(
    (
        value
        for module in (options, consume_settings, publish_settings)
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
        if not name.endswith("Settings")
    ),
    key=lambda cls: cls.__name__,
)
RANGED = [
    (cls, spec)
    for cls in CLASSES
    for spec in dataclasses.fields(cls)
    if spec.metadata.get("low") is not None or spec.metadata.get("high") is not None
]
each_range = pytest.mark.parametrize(
    ("cls", "spec"), RANGED, ids=[f"{cls.__name__}.{spec.name}" for cls, spec in RANGED]
)

#: Other fields that must change if a field is at the end of its range.
COMPANIONS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("BackoffOptions", "unit", "high"): {"longest": 86400.0},
    ("RetryOptions", "requeue_delay", "high"): {"max_requeue_delay": 86400.0},
    ("RetryOptions", "max_requeue_delay", "low"): {"requeue_delay": 0.0},
    ("ReconnectOptions", "reconnect_delay", "high"): {"max_reconnect_delay": 86400.0},
    ("ReconnectOptions", "max_reconnect_delay", "low"): {"reconnect_delay": 0.01},
    ("WriterReconnectOptions", "reconnect_delay", "high"): {"max_reconnect_delay": 86400.0},
    ("WriterReconnectOptions", "max_reconnect_delay", "low"): {"reconnect_delay": 0.01},
    ("ReaderOptions", "batch_wait", "low"): {"batch_size": 1},
    ("ReaderOptions", "batch_wait", "high"): {"batch_size": 1},
}


def edge(cls: type, spec: Any, side: str) -> tuple[Any, dict[str, Any]]:
    return spec.metadata[side], COMPANIONS.get((cls.__name__, spec.name, side), {})


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_defaults_are_valid_and_documented(cls: Any) -> None:
    made = cls()
    for spec in dataclasses.fields(cls):
        assert spec.metadata.get("doc"), f"{cls.__name__}.{spec.name} has no documentation"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(cls)[0].name, None)


@pytest.mark.rule("CFG-1")
@each_range
@pytest.mark.parametrize("side", ["low", "high"])
def test_a_range_includes_its_ends_and_no_value_beyond_them(cls: Any, spec: Any, side: str) -> None:
    value, companions = edge(cls, spec, side)
    made = cls(**{spec.name: value, **companions})
    assert getattr(made, spec.name) == value
    step = 1 if isinstance(value, int) else 0.0001
    beyond = value - step if side == "low" else value + step
    with pytest.raises(OptionError) as caught:
        cls(**{spec.name: beyond, **companions})
    assert (caught.value.name, caught.value.value) == (spec.name, beyond)


@pytest.mark.rule("CFG-1")
@each_range
@pytest.mark.parametrize("bad", [math.nan, "1", True, [1], b"1"])
def test_the_error_for_a_value_that_is_no_number_names_the_option(cls: Any, spec: Any, bad: object) -> None:
    with pytest.raises(OptionError) as caught:
        cls(**{spec.name: bad})
    assert caught.value.name == spec.name


WHOLE = [(cls, spec) for cls, spec in RANGED if "int" in str(spec.type).split(" | ")]


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(("cls", "spec"), WHOLE, ids=[f"{cls.__name__}.{spec.name}" for cls, spec in WHOLE])
def test_a_count_must_be_whole(cls: Any, spec: Any) -> None:
    inside = spec.metadata["low"] + 0.5 if spec.metadata["low"] != -1 else 64.5
    with pytest.raises(OptionError, match="whole"):
        cls(**{spec.name: inside})


# -- one by one


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(
    ("cls", "values", "name"),
    [
        (BackoffOptions, {"unit": 10.0, "longest": 9.9}, "longest"),
        (BackoffOptions, {"strategy": "fibonacci"}, "strategy"),
        (options.RetryOptions, {"requeue_delay": 10.0, "max_requeue_delay": 9.9}, "requeue_delay"),
        (options.ReconnectOptions, {"reconnect_delay": 10.0, "max_reconnect_delay": 9.9}, "reconnect_delay"),
        (TLSOptions, {"key_file": "key.pem"}, "key_file"),
        (TLSOptions, {"ca_file": 7}, "ca_file"),
        (TLSOptions, {"ca_file": ""}, "ca_file"),
        (TLSOptions, {"cert_file": b"cert.pem"}, "cert_file"),
        (TLSOptions, {"cert_file": "cert.pem", "key_file": 7}, "key_file"),
        (TLSOptions, {"verify": None}, "verify"),
        (TLSOptions, {"verify": "no"}, "verify"),
        (TLSOptions, {"server_hostname": 5}, "server_hostname"),
        (TLSOptions, {"server_hostname": ""}, "server_hostname"),
        (TLSOptions, {"server_hostname": "a\0b"}, "server_hostname"),
        (TLSOptions, {"server_hostname": ".example"}, "server_hostname"),
        (TLSOptions, {"server_hostname": "a" * 64}, "server_hostname"),
        (ConnectionOptions, {"compression": "gzip"}, "compression"),
        (ConnectionOptions, {"compression": ["snappy"]}, "compression"),
        (ConnectionOptions, {"heartbeat_interval": -1}, "heartbeat_interval"),
        (ConnectionOptions, {"output_buffer_size": 0}, "output_buffer_size"),
        (ConnectionOptions, {"output_buffer_size": 63}, "output_buffer_size"),
        (ConnectionOptions, {"output_buffer_timeout": 0}, "output_buffer_timeout"),
        (ConnectionOptions, {"output_buffer_timeout": 0.0009}, "output_buffer_timeout"),
        (ConnectionOptions, {"output_buffer_timeout": 3600.1}, "output_buffer_timeout"),
        (ConnectionOptions, {"output_buffer_timeout": math.nan}, "output_buffer_timeout"),
        (ConnectionOptions, {"output_buffer_timeout": "1"}, "output_buffer_timeout"),
        (ConnectionOptions, {"output_buffer_timeout": True}, "output_buffer_timeout"),
        (ConnectionOptions, {"tls": True}, "tls"),
        (ConnectionOptions, {"tls": "yes"}, "tls"),
        (ConnectionOptions, {"auth_secret": 5}, "auth_secret"),
        (ConnectionOptions, {"auth_secret": ""}, "auth_secret"),
        (ConnectionOptions, {"auth_secret": b""}, "auth_secret"),
        (ConnectionOptions, {"auth_secret": "hu\udcffsh"}, "auth_secret"),
        (ConnectionOptions, {"client_id": b"me"}, "client_id"),
        (ConnectionOptions, {"hostname": 5}, "hostname"),
        (ConnectionOptions, {"user_agent": None}, "user_agent"),
        (ConnectionOptions, {"extra_identify": None}, "extra_identify"),
        (ConnectionOptions, {"extra_identify": {1: 2}}, "extra_identify"),
    ],
)
def test_contradictory_values_and_wrong_types_are_refused(cls: Any, values: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError) as caught:
        cls(**values)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "values",
    [
        {"output_buffer_size": -1},
        {"output_buffer_size": 64},
        {"output_buffer_timeout": -1},
        {"output_buffer_timeout": None},
        {"output_buffer_timeout": 0.001},
        {"output_buffer_timeout": 3600},
        {"tls": TLSOptions()},
        {"tls": ssl.create_default_context()},
        {"auth_secret": b"\x00"},
        {"client_id": "", "hostname": ""},
        {"extra_identify": {"desired_tag": "x"}},
    ],
    ids=lambda options: ",".join(options) or "none",
)
def test_values_that_nsqd_accepts_are_accepted(values: dict[str, Any]) -> None:
    ConnectionOptions(**values)


@pytest.mark.rule("SEC-4")
def test_the_secret_is_in_no_repr_and_no_error() -> None:
    assert "hush" not in repr(ConnectionOptions(auth_secret="hush"))
    with pytest.raises(OptionError) as caught:
        ConnectionOptions(auth_secret=["hush"])  # type: ignore[arg-type]
    assert "hush" not in str(caught.value) + repr(caught.value)


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(
    "refused",
    [
        lambda: Writer(auth_secert="hush"),
        lambda: Reader("t", "ch", print, lookupd_tokn="hush"),
        lambda: Writer("user:hush@nsqd7:4150"),
        lambda: Writer(lookupd_http_addresses="user:hush@lookup:4161"),
        lambda: Writer(lookupd_http_addresses="ftp://user:hush@lookup"),
        lambda: Writer(lookupd_http_addresses="http://user:hush@lookup:http"),
        lambda: Writer(lookupd_http_addresses="http://user:hush@lookup?x"),
        lambda: Writer(lookupd_http_addresses="http://user:hush@/"),
        lambda: Writer(lookupd_http_addresses="http://lookup:4161/?token=hush"),
        lambda: Writer(lookupd_http_addresses="http://lookup:4161/?token=,hush"),
        lambda: Writer(lookupd_http_addresses="http://lookup:4161/#hush"),
        lambda: Writer(lookupd_http_addresses="lookup:4161?token=hush"),
        lambda: Writer(lookupd_http_addresses=["one", "http://..:4161/?token=hush"]),
        lambda: Writer(lookupd_http_addresses="http://user:hu/sh@lookup"),
        lambda: Writer(lookupd_token="hush\n"),
        lambda: Writer(lookupd_http_addresses="http://hush:47/x@lookup:4161"),
        lambda: Writer("http://user:hush,x@nsqd7:4150"),
        lambda: Writer(lookupd_http_addresses="http://user:hush,x@lookup:4161"),
        lambda: Writer(lookupd_http_addresses="http://user:hush x@lookup:4161"),
        lambda: Reader("t", "ch", print, lookupd_http_addresses=["http://user:hush", "x@lookup:4161"]),
        lambda: Writer(lookupd_http_addresses=(part for part in ("http://user:hush", "x@lookup:4161"))),
        lambda: Writer(lookupd_http_addresses=[b"http://user:hush@lookup"]),  # type: ignore[list-item]
        lambda: Writer(lookupd_http_addresses=("http://user:hush@lookup", 4161)),
        lambda: Writer(lookupd_http_addresses=[{"url": "http://user:hush@lookup"}]),  # type: ignore[list-item]
        lambda: Writer([("http://user:hush@nsqd7", 4150)]),
        lambda: parse_address(["user:hush@nsqd7"], default_port=1, option="nsqd"),  # type: ignore[arg-type]
    ],
)
def test_an_address_that_may_contain_a_secret_is_not_shown(refused: Callable[[], Any]) -> None:
    with pytest.raises(OptionError) as caught:
        refused()
    told = [caught.value, caught.value.__context__, caught.value.__cause__]
    assert "hush" not in "".join(f"{error} {error!r}" for error in told)


@pytest.mark.rule("CFG-1")
def test_an_address_is_shown_if_no_address_may_contain_a_secret() -> None:
    with pytest.raises(OptionError, match="'two:x': the port must be a number"):
        Writer("one:4150,two:x")
    for whole in (b"one:4150", 5):
        with pytest.raises(
            OptionError, match=rf"nsqd_tcp_addresses={whole!r}: must be 'host:port' or a list of such addresses"
        ):
            Writer(whole)  # type: ignore[arg-type]


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(
    ("given_options", "name"),
    [
        ({"lookupd_http_addresses": "http://..:4161"}, "lookupd_http_addresses"),
        ({"lookupd_tls": "yes"}, "lookupd_tls"),
        ({"lookupd_tls": False}, "lookupd_tls"),
        ({"lookupd_tls": TLSOptions(ca_file="/nowhere.pem")}, "ca_file"),
        ({"lookupd_token": 5}, "lookupd_token"),
        ({"lookupd_token": "\u00e9"}, "lookupd_token"),
        ({"lookupd_http_addresses": "https://lookup:99999"}, "lookupd_http_addresses"),
        ({"lookupd_http_addresses": "https://lookup#x"}, "lookupd_http_addresses"),
    ],
)
def test_options_for_nsqlookupd_are_checked_at_construction(given_options: dict[str, Any], name: str) -> None:
    for make in (lambda: Writer(**given_options), lambda: Reader("t", "ch", print, **given_options)):
        with pytest.raises(OptionError) as caught:
            make()
        assert caught.value.name == name


@pytest.mark.rule("SEC-1")
@pytest.mark.parametrize("name", ["nsqd.example", "127.0.0.1", "::1", "fe80::1%eth0", "b\u00fccher.example", "nsqd_7"])
def test_server_hostname_may_be_a_name_or_an_ip_address(name: str) -> None:
    assert TLSOptions(server_hostname=name).server_hostname == name


@pytest.mark.rule("SEC-1")
def test_an_error_about_a_client_certificate_names_both_files(certs: Certificates, tmp_path: Path) -> None:
    client, missing = certs.client, str(tmp_path / "missing.key")
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(Path(client.key).read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )
    for cert, key_file, why in (
        (missing, client.key, "No such file"),
        (client.cert, missing, f"key_file='{missing}': .*No such file"),
        (client.cert, str(locked), "locked.key.*the key is encrypted"),
        (client.cert, None, "key_file=None"),
        (client.cert, certs.server.key, "server.*(?i:mismatch)"),
    ):
        with pytest.raises(OptionError, match=why) as caught:
            TLSOptions(cert_file=cert, key_file=key_file).context()
        assert caught.value.name == "cert_file"


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize("extra", [{"x": b"bytes"}, {"x": math.nan}, {"sample_rate": 5}, {"client_id": "x"}], ids=str)
def test_extra_identify_is_checked_at_construction(extra: dict[str, Any]) -> None:
    for make in (lambda: Writer(extra_identify=extra), lambda: Reader("t", "ch", print, extra_identify=extra)):
        with pytest.raises(OptionError, match="extra_identify"):
            make()


@pytest.mark.rule("BACK-5")
def test_a_longest_pause_of_zero_turns_backoff_off() -> None:
    assert not BackoffOptions(longest=0).enabled
    assert BackoffOptions().enabled
    assert BackoffOptions(longest=1.0, unit=1.0).enabled


# -- addresses


@pytest.mark.rule("CFG-2")
@pytest.mark.parametrize(
    ("given_address", "address"),
    [
        ("nsqd7", ("nsqd7", 4150)),
        ("nsqd7:", ("nsqd7", 4150)),
        ("nsqd7:1", ("nsqd7", 1)),
        ("nsqd7:65535", ("nsqd7", 65535)),
        ("127.0.0.1:4152", ("127.0.0.1", 4152)),
        ("[::1]:4152", ("::1", 4152)),
        ("[::1]", ("::1", 4150)),
        ("::1", ("::1", 4150)),
        ("[fe80::1%eth0]:99", ("fe80::1%eth0", 99)),
        (("nsqd7", 99), ("nsqd7", 99)),
        (("::1", 99), ("::1", 99)),
    ],
)
def test_an_address_is_read(given_address: Any, address: tuple[str, int]) -> None:
    assert parse_address(given_address, default_port=4150, option="nsqd") == address


@pytest.mark.rule("CFG-2")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "must name a host"),
        (":4150", "must name a host"),
        ("nsqd7:0", "between 1 and 65535"),
        ("nsqd7:65536", "between 1 and 65535"),
        ("nsqd7:http", "must be a number"),
        ("nsqd7:-1", "must be a number"),
        ("nsqd7:" + "9" * 5000, "must be a number"),
        ("nsqd7:\u0664", "must be a number"),
        ("http://nsqd7:4150", "without a scheme"),
        ("nsqd7/x", "without a scheme"),
        ("user@nsqd7", "without a scheme"),
        ("nsqd 7", "without a scheme or spaces"),
        ("nsqd7\n", "without a scheme or spaces"),
        ("nsqd7\x00", "without a scheme"),
        ("..", "an empty label"),
        ("nsqd..example:4150", "an empty label"),
        (("x" * 64 + ".example", 4150), "more than 63 characters"),
        ("one:4150,two:4150", "pass a list"),
        ("[::1", "'[v6]:port'"),
        ("[::1]4150", "'[v6]:port'"),
        ("[]:4150", "must name a host"),
        (("[::1]", 4150), "must name a host"),
        (("nsqd7", "4150"), "(host, port)"),
        (("nsqd7", True), "(host, port)"),
        (("nsqd7", 0), "between 1 and 65535"),
        ((5, 4150), "(host, port)"),
        (("nsqd7",), "(host, port)"),
        (b"nsqd7:4150", "(host, port)"),
        (None, "(host, port)"),
        (4150, "(host, port)"),
    ],
)
def test_the_error_for_an_invalid_address_says_why(bad: Any, why: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_address(bad, default_port=4150, option="nsqd")
    assert why in str(caught.value)
    assert caught.value.name == "nsqd"


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_an_option_error(text: str) -> None:
    try:
        host, port = parse_address(text, default_port=4150, option="nsqd")
    except OptionError:
        return
    assert host
    assert 1 <= port <= 65535
    assert parse_address(format_address((host, port)), default_port=1, option="nsqd") == (host, port)


def test_format_address_puts_an_ipv6_host_in_brackets() -> None:
    assert format_address(("::1", 4150)) == "[::1]:4150"
    assert format_address(("nsqd7", 4150)) == "nsqd7:4150"


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize("value", [True, "1", None, b"1", float("nan"), float("inf"), 0, 11, 10.5, [1]])
@pytest.mark.parametrize("whole", [False, True])
def test_all_numbers_have_the_same_error_text(value: Any, whole: bool) -> None:
    with pytest.raises(OptionError) as caught:
        check_number("count", value, 1, 10, whole=whole)
    assert str(caught.value).endswith(f": must be a {'whole ' if whole else ''}number between 1 and 10")


def test_a_number_at_the_bounds_is_returned_and_one_without_an_upper_bound_is_finite() -> None:
    assert [check_number("count", value, 1, 10) for value in (1, 1.5, 10)] == [1, 1.5, 10]
    assert check_number("delay", 1e300, 0, math.inf) == 1e300
    with pytest.raises(OptionError, match="must be a number of at least 0, and finite"):
        check_number("delay", math.inf, 0, math.inf)
