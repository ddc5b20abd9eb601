"""What a lost nsqd proves, and how long one that refuses is left alone."""

from __future__ import annotations

import pytest

from gnsq_lite import errors
from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.losses import Losses
from tests.fakes import FakeClock
from tests.unit.policy.test_attempts import Fixed

HOPELESS = errors.TLSNotGranted("a:1", "no TLS")
PASSING = errors.TLSError("a:1", "nsqd closed the connection in the TLS handshake")


def losses(clock: FakeClock | None = None) -> Losses[str]:
    options = ReconnectOptions(reconnect_delay=8.0, max_reconnect_delay=20.0)
    return Losses(options, clock=clock or FakeClock(), rng=Fixed(0.5))


@pytest.mark.rule("CONN-3")
def test_only_proofs_for_all_that_is_known_and_before_any_success_are_hopeless() -> None:
    told: Losses[str] = losses()
    assert not told.is_hopeless([])
    assert not told.is_hopeless(["a", "b"])
    told.lost("a", HOPELESS)
    assert not told.is_hopeless(["a", "b"])
    told.lost("b", PASSING)
    assert not told.is_hopeless(["a", "b"])
    told.lost("b", errors.UnauthorizedError("E_UNAUTHORIZED"))
    assert told.is_hopeless(["a", "b"])
    told.lost("a", errors.ConnectError("a:1", "refused"))  # the last word counts
    assert not told.is_hopeless(["a", "b"])
    told.joined("c")
    told.lost("a", HOPELESS)
    assert not told.is_hopeless(["a", "b"])


@pytest.mark.rule("YZ-14")
def test_one_nsqd_of_another_dialect_is_hopeless_before_any_success() -> None:
    wrong = errors.WrongDialectError("a:1", "Youzan's")
    told: Losses[str] = losses()
    told.lost("a", wrong)
    assert told.is_hopeless(["a", "b"])
    assert told.is_hopeless([])
    told.joined("b")
    told.lost("a", wrong)
    assert not told.is_hopeless(["a", "b"])


@pytest.mark.rule("YZ-14")
@pytest.mark.rule("CONN-3")
def test_an_nsqd_of_another_dialect_rests_for_the_longest_delay() -> None:
    clock = FakeClock()
    told = losses(clock)
    told.lost("a", errors.WrongDialectError("a:1", "Youzan's"))
    clock.advance(19.9)
    assert told.rests("a")
    clock.advance(0.2)
    assert not told.rests("a")


@pytest.mark.parametrize(
    "error",
    [
        PASSING,
        errors.ConnectionLost("a:1", "reset"),
        errors.HandshakeTimeout("a:1", "silent"),
        errors.FrameError("unknown frame type 7"),
        errors.UnexpectedFrame("a response"),
        errors.DecompressionError("garbage"),
        errors.AuthFailedError("E_AUTH_FAILED"),
        errors.InvalidError("E_INVALID", "whatever"),
    ],
)
def test_what_a_restart_may_look_like_is_no_proof(error: errors.NSQError) -> None:
    told: Losses[str] = losses()
    told.lost("a", error)
    assert not told.is_hopeless(["a"])


def test_the_same_reason_is_news_once() -> None:
    told: Losses[str] = losses()
    assert told.lost("a", PASSING)
    assert not told.lost("a", errors.TLSError(*PASSING.args))
    assert told.lost("a", HOPELESS)
    assert told.reasons() == {"a": HOPELESS}
    told.joined("a")
    assert told.reasons() == {}
    assert told.lost("a", HOPELESS)


@pytest.mark.rule("CONN-4")
def test_one_that_refuses_rests_ever_longer_until_it_joins_or_is_forgotten() -> None:
    clock = FakeClock()
    told: Losses[str] = losses(clock)
    told.lost("other", errors.ConnectionLost("b:1", "reset"))
    assert not told.rests("other")
    for delay in (8.0, 16.0, 20.0, 20.0):
        told.lost("a", PASSING)
        clock.advance(delay - 0.001)
        assert told.rests("a")
        clock.advance(0.002)
        assert not told.rests("a")
    told.joined("a")
    told.lost("a", HOPELESS)
    clock.advance(8.0)
    assert not told.rests("a")
    told.lost("a", HOPELESS)
    told.forget("a")
    assert not told.rests("a")
