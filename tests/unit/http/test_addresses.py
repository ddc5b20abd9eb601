"""Addresses and options of the HTTP clients, and their texts.  No test opens a socket."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import Reader, Writer
from gnsq_lite.errors import OptionError
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.http.transport import deadline, is_loopback, remaining
from gnsq_lite.options import HTTPOptions, TLSOptions


@pytest.mark.parametrize(
    ("address", "tls", "url"),
    [
        ("host", None, "http://host:4151"),
        ("host:1", None, "http://host:1"),
        (("host", 1), None, "http://host:1"),
        ("::1", None, "http://[::1]:4151"),
        ("[::1]:7", None, "http://[::1]:7"),
        ("host:4152", TLSOptions(), "https://host:4152"),
        ("host:4152", True, "https://host:4152"),
        ("https://host", None, "https://host:443"),
        ("http://host", None, "http://host:80"),
        ("http://[::1]:5/a/b/", None, "http://[::1]:5/a/b"),
        ("https://user:secret@host:9", None, "https://host:9"),
    ],
)
def test_an_address_is_a_host_a_pair_or_a_url(address: Any, tls: Any, url: str) -> None:
    client = NsqdClient(address, tls=tls)
    assert client.url == url
    assert repr(client) == f"<NsqdClient {url}>"


def test_the_default_port_is_that_of_the_server() -> None:
    assert LookupdClient("host").url == "http://host:4161"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host:0",
        "host:x",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://host/?a=b",
        "http://host/#x",
        5,
        None,
        "http://h ost",
        "host\n",
        "http://host\n.evil",
    ],
)
def test_an_invalid_address_is_an_option_error(address: Any) -> None:
    with pytest.raises(OptionError):
        NsqdClient(address)


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://user:s3cret@host",
        "http://user:s3cret@host/?x=1",
        "http://user:s3cret@host:999999",
        "http://user:47/s3cret@host",
        "ftp://user:47/s3cret@host",
        "http://user:47?s3cret@host",
        "http://user:47#s3cret@host",
        "http://user,47/s3cret@host",
        b"http://user:47s3cret@host",
        ("http://user:47s3cret@host", 80),
    ],
)
def test_no_secret_is_in_the_error_about_a_url(url: Any) -> None:
    with pytest.raises(OptionError) as caught:
        NsqdClient(url)
    assert "s3cret" not in f"{caught.value}{caught.value!r}"
    assert "47" not in f"{caught.value}{caught.value!r}"


def test_contradictory_options_are_refused() -> None:
    with pytest.raises(OptionError, match="contradicts http://host; use https://"):
        NsqdClient("http://host", tls=TLSOptions())
    with pytest.raises(OptionError, match="contradicts the user and password"):
        NsqdClient("https://u:p@host", auth_token="t")
    with pytest.raises(OptionError, match="verify=False"):
        NsqdClient("host", tls=False)
    with pytest.raises(OptionError, match=r"no_such_option=1: there is no such option$"):
        NsqdClient("host", no_such_option=1)


def test_settings_replace_those_of_the_options() -> None:
    options = HTTPOptions(http_timeout=3.0, http_pool_size=7)
    client = NsqdClient("host", options, http_timeout=4.0)
    assert (client.options.http_timeout, client.options.http_pool_size) == (4.0, 7)


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "ü", "\x00", 5])
def test_a_token_that_could_forge_a_header_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(OptionError, match="auth_token='<hidden>'"):
        NsqdClient("host", auth_token=token)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1", False),
        ("::2", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_deadline_applies_to_its_block_only() -> None:
    with deadline(100.0):
        assert 99.0 < remaining() <= 100.0
        with deadline(-1.0), pytest.raises(TimeoutError):
            remaining()
        assert 99.0 < remaining() <= 100.0


def test_creating_a_client_logs_nothing_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    NsqdClient("host")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("make", "wrong", "meant"),
    [
        (lambda **wrong: NsqdClient("host", **wrong), "http_timeot", "http_timeout"),
        (lambda **wrong: LookupdClient("host", **wrong), "timeout", "http_timeout"),
        (lambda **wrong: Reader("t", "c", print, **wrong), "max_inflight", "max_in_flight"),
        (lambda **wrong: Reader("t", "c", print, **wrong), "hearbeat_interval", "heartbeat_interval"),
        (Writer, "nsqd_tcp_adresses", "nsqd_tcp_addresses"),
    ],
    ids=["NsqdClient", "LookupdClient", "Reader", "Reader's connection", "Writer"],
)
def test_the_error_for_a_misspelt_keyword_suggests_the_correct_keyword(
    make: Callable[..., Any], wrong: str, meant: str
) -> None:
    with pytest.raises(OptionError, match=f"there is no such option; did you mean '{meant}'"):
        make(**{wrong: 1})
