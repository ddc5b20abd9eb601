"""What a lost nsqd proves, and how long one that refuses is left alone."""

from __future__ import annotations

import random

import pytest

from gnsq_lite import errors
from gnsq_lite.consume.endpoints import Losses
from gnsq_lite.dialect import Endpoint
from gnsq_lite.options import ReconnectOptions
from tests.fakes import FakeClock

A, B, C, OTHER = (Endpoint(host, 4150) for host in ("a", "b", "c", "other"))
HOPELESS = errors.TLSNotGranted("a:1", "no TLS")
PASSING = errors.TLSError("a:1", "nsqd closed the connection in the TLS handshake")


class Middle(random.Random):
    """Random numbers that change no delay."""

    def random(self) -> float:
        return 0.5


def losses(clock: FakeClock | None = None) -> Losses:
    options = ReconnectOptions(reconnect_delay=8.0, max_reconnect_delay=20.0)
    return Losses(options, clock=clock or FakeClock(), rng=Middle())


@pytest.mark.rule("CONN-3")
def test_only_proofs_for_all_that_is_known_and_before_any_success_are_hopeless() -> None:
    told: Losses = losses()
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
    told: Losses = losses()
    told.lost(A, wrong)
    assert told.is_hopeless([A, B])
    assert told.is_hopeless([])
    told.joined(B)
    told.lost(A, wrong)
    assert not told.is_hopeless([A, B])


@pytest.mark.rule("YZ-14")
@pytest.mark.rule("CONN-3")
def test_an_nsqd_of_another_dialect_rests_for_the_longest_delay() -> None:
    clock = FakeClock()
    told = losses(clock)
    told.lost(A, errors.WrongDialectError("a:1", "Youzan's"))
    clock.advance(19.9)
    assert told.rests(A)
    clock.advance(0.2)
    assert not told.rests(A)


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
    told: Losses = losses()
    told.lost(A, error)
    assert not told.is_hopeless([A])


def test_the_same_reason_is_news_once() -> None:
    told: Losses = losses()
    assert told.lost(A, PASSING)
    assert not told.lost(A, errors.TLSError(*PASSING.args))
    assert told.lost(A, HOPELESS)
    assert told.reasons() == {A: HOPELESS}
    told.joined(A)
    assert told.reasons() == {}
    assert told.lost(A, HOPELESS)


@pytest.mark.rule("CONN-4")
def test_an_nsqd_that_refuses_is_left_alone_ever_longer_until_it_is_subscribed_or_forgotten() -> None:
    clock = FakeClock()
    told: Losses = losses(clock)
    told.lost(OTHER, errors.ConnectionLost("b:1", "reset"))
    assert not told.rests(OTHER)
    for delay in (8.0, 16.0, 20.0, 20.0):
        told.lost(A, PASSING)
        clock.advance(delay - 0.001)
        assert told.rests(A)
        clock.advance(0.002)
        assert not told.rests(A)
    told.joined(A)
    told.lost(A, HOPELESS)
    clock.advance(8.0)
    assert not told.rests(A)
    told.lost(A, HOPELESS)
    told.forget(A)
    assert not told.rests(A)
