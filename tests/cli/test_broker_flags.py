"""The flags of ``gnsq-lite broker``."""

from __future__ import annotations

from typing import Any

import click
import pytest

from gnsq_lite.cli.broker import broker_of, command


def flags(*arguments: str) -> dict[str, Any]:
    return command.make_context("broker", list(arguments)).params


def test_flags_accept_durations() -> None:
    assert flags("--max-req-timeout=1m30s")["max_req_timeout"] == 90.0
    with pytest.raises(click.BadParameter, match="is not a duration: write 5m"):
        flags("--msg-timeout=1x")


@pytest.mark.parametrize(
    ("given", "snappy", "deflate", "required"),
    [
        ([], True, True, "false"),
        (["--no-snappy", "--no-deflate", "--tls-required=tcp-https"], False, False, "tcp-https"),
        (["--snappy", "--deflate", "--tls-required=true"], True, True, "true"),
    ],
)
def test_switches_are_negated_with_no(given: list[str], snappy: bool, deflate: bool, required: str) -> None:
    found = flags(*given)
    assert (found["snappy"], found["deflate"], found["tls_required"]) == (snappy, deflate, required)


def test_without_nsqlookupd_only_nsqds_addresses_must_have_one_host() -> None:
    given = flags("--tcp-address=0.0.0.0:0", "--http-address=0.0.0.0:0", "--https-address=0.0.0.0:0", "--no-lookupd")
    del given["as_json"]
    assert broker_of(given).host == "0.0.0.0"
    mixed = flags("--tcp-address=0.0.0.0:0")
    del mixed["as_json"]
    with pytest.raises(click.UsageError, match="the same host"):
        broker_of(mixed)
