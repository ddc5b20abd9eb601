"""Errors after which a Reader does not try again."""

from __future__ import annotations

import pytest

from gnsq_lite import errors
from gnsq_lite.consume.losses import Losses
from gnsq_lite.dialect import Endpoint

A, B, C = (Endpoint(host, 4150) for host in ("a", "b", "c"))
HOPELESS = errors.TLSNotGranted("a:1", "no TLS")
PASSING = errors.TLSError("a:1", "nsqd closed the connection in the TLS handshake")


@pytest.mark.rule("CONN-3")
def test_a_reader_is_hopeless_if_all_endpoints_are_misconfigured_and_none_ever_worked() -> None:
    told: Losses = Losses()
    assert not told.is_hopeless([])
    assert not told.is_hopeless([A, B])
    told.lost(A, HOPELESS)
    assert not told.is_hopeless([A, B])
    told.lost(B, PASSING)
    assert not told.is_hopeless([A, B])
    told.lost(B, errors.UnauthorizedError("E_UNAUTHORIZED"))
    assert told.is_hopeless([A, B])
    told.lost(A, errors.ConnectError("a:1", "refused"))  # the last reason counts
    assert not told.is_hopeless([A, B])
    told.joined(C)
    told.lost(A, HOPELESS)
    assert not told.is_hopeless([A, B])


@pytest.mark.rule("YZ-14")
def test_one_nsqd_of_another_dialect_is_hopeless_before_any_success() -> None:
    wrong = errors.WrongDialectError("a:1", "Youzan's")
    told: Losses = Losses()
    told.lost(A, wrong)
    assert told.is_hopeless([A, B])
    assert told.is_hopeless([])
    told.joined(B)
    told.lost(A, wrong)
    assert not told.is_hopeless([A, B])


@pytest.mark.parametrize(
    "error",
    [
        PASSING,
        errors.ConnectionLost("a:1", "reset"),
        errors.HandshakeTimeout("a:1", "silent"),
        errors.ProtocolError("unknown frame type 7"),
        errors.AuthFailedError("E_AUTH_FAILED"),
        errors.InvalidError("E_INVALID", "whatever"),
    ],
)
def test_errors_that_a_restart_may_cause_are_not_hopeless(error: errors.NSQError) -> None:
    told: Losses = Losses()
    told.lost(A, error)
    assert not told.is_hopeless([A])


def test_the_same_reason_is_news_once() -> None:
    told: Losses = Losses()
    assert told.lost(A, PASSING)
    assert not told.lost(A, errors.TLSError(*PASSING.args))
    assert told.lost(A, HOPELESS)
    assert told.reasons() == {A: HOPELESS}
    told.joined(A)
    assert told.reasons() == {}
    assert told.lost(A, HOPELESS)
