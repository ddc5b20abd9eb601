"""``gnsq-lite broker`` takes nsqd's flags as nsqd does."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gnsq_lite.cli.broker import broker_of, command


def flags(*arguments: str) -> dict[str, Any]:
    return command.make_context("broker", list(arguments)).params


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1m30s", 90.0), ("250ms", 0.25), ("1h0m0.5s", 3600.5), ("1.5", 1.5), ("60", 60.0), ("10us", 1e-5), ("2µs", 2e-6)],
)
def test_a_duration_is_gos_or_a_number_of_seconds(text: str, seconds: float) -> None:
    assert flags(f"--max-req-timeout={text}")["max_req_timeout"] == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1x", "s", "1m30", "1 s", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration such as 1m30s"):
        flags(f"--msg-timeout={text}")


@pytest.mark.parametrize(
    ("given", "snappy", "deflate", "required"),
    [
        ([], True, True, "false"),
        (["--snappy=false", "-deflate=false", "--tls-required"], False, False, "true"),
        (["--no-snappy", "--no-deflate", "--tls-required=tcp-https"], False, False, "tcp-https"),
        (["--snappy", "--deflate=true", "-tls-required=false"], True, True, "false"),
    ],
)
def test_switches_go_with_a_value_and_without(given: list[str], snappy: bool, deflate: bool, required: str) -> None:
    found = flags(*given)
    assert (found["snappy"], found["deflate"], found["tls_required"]) == (snappy, deflate, required)


def test_flags_of_the_disk_are_taken_and_said_to_be_unused(capsys: pytest.CaptureFixture[str]) -> None:
    given = flags("--data-path", "/nowhere", "--verbose", "-sync-timeout=2s", "--msg-timeout=2s", "--no-lookupd")
    del given["as_json"]
    broker = broker_of(given)
    assert broker.options.msg_timeout == 2.0
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == [
        f"--{flag} is unused: all is in memory" for flag in ("data-path", "sync-timeout", "verbose")
    ]


def test_without_nsqlookupd_only_nsqds_addresses_must_have_one_host() -> None:
    given = flags("--tcp-address=0.0.0.0:0", "--http-address=0.0.0.0:0", "--https-address=0.0.0.0:0", "--no-lookupd")
    del given["as_json"]
    assert broker_of(given).host == "0.0.0.0"
    mixed = flags("--tcp-address=0.0.0.0:0")
    del mixed["as_json"]
    with pytest.raises(click.UsageError, match="the same host"):
        broker_of(mixed)
