"""Which lost connections no retry can replace."""

from __future__ import annotations

import pytest

from gnsq_lite import errors
from gnsq_lite.consume.endpoints import Losses
from gnsq_lite.dialect import Endpoint

A, B, C = (Endpoint(host, 4150) for host in ("a", "b", "c"))
HOPELESS = errors.TLSNotGranted("a:1", "no TLS")
PASSING = errors.TLSError("a:1", "nsqd closed the connection in the TLS handshake")


@pytest.mark.rule("CONN-3")
def test_only_proofs_for_all_that_is_known_and_before_any_success_are_hopeless() -> None:
    told: Losses = Losses()
    assert not told.is_hopeless([])
    assert not told.is_hopeless([A, B])
    told.lost(A, HOPELESS)
    assert not told.is_hopeless([A, B])
    told.lost(B, PASSING)
    assert not told.is_hopeless([A, B])
    told.lost(B, errors.UnauthorizedError("E_UNAUTHORIZED"))
    assert told.is_hopeless([A, B])
    told.lost(A, errors.ConnectError("a:1", "refused"))  # the last word counts
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
def test_what_a_restart_may_look_like_is_no_proof(error: errors.NSQError) -> None:
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
