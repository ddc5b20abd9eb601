"""How long a link waits between two connections; without a network and without waiting."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ConnectError, NSQError
from gnsq_lite.net import link, loop
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.lost import interrupted
from gnsq_lite.options import ReconnectOptions


class Owner:
    """Has no connection, and says what follows from each loss."""

    def __init__(self, *follows: Again) -> None:
        self.follows = list(follows)

    def make_connection(self) -> Any:
        raise ConnectError("nsqd:4150", "refused")

    def on_lost(self, reason: NSQError) -> Again:
        return self.follows.pop(0)

    def is_over(self) -> bool:
        return not self.follows

    def on_connected(self, connection: Any) -> None: ...
    def on_disconnected(self, connection: Any) -> None: ...
    def on_retry(self) -> None: ...


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    append: Callable[[float], None] = found.append
    monkeypatch.setattr(link, "gevent", SimpleNamespace(sleep=append, GreenletExit=gevent.GreenletExit))
    return found


def run(*follows: Again) -> None:
    options = ReconnectOptions(reconnect_jitter=0.0)
    Link[Any](Endpoint("nsqd", 4150), Owner(*follows), options, random.Random(5), logging.getLogger("test")).run()


@pytest.mark.rule("CONN-3")
def test_pauses_grow_unless_there_is_none_and_begin_again_where_it_is_to_be_soon(pauses: list[float]) -> None:
    later, soon = Again.LATER, Again.SOON
    run(later, later, Again.AT_ONCE, later, soon, soon, later, Again.NEVER, later)
    assert pauses == [8.0, 16.0, 32.0, 8.0, 8.0, 16.0]


class Torn(Owner):
    """Its connections end by a signal handler's exception."""

    def make_connection(self) -> Any:
        raise interrupted("nsqd:4150")


@pytest.mark.rule("CONN-3")
def test_what_was_none_of_nsqds_doing_is_made_anew_soon_but_ever_later_where_it_comes_again(
    pauses: list[float],
) -> None:
    options, log = ReconnectOptions(reconnect_jitter=0.0), logging.getLogger("test")
    owner = Torn(Again.LATER, Again.LATER, Again.LATER, Again.NEVER)
    Link[Any](Endpoint("nsqd", 4150), owner, options, random.Random(5), log).run()
    assert pauses == [0.05, 0.1, 0.2]


class Failing(Owner):
    """What follows from a loss fails by itself, each time."""

    def on_lost(self, reason: NSQError) -> Again:
        self.follows.pop()
        raise ValueError("a dialect's own")


@pytest.mark.rule("CONN-3")
def test_an_owner_that_fails_at_each_loss_is_asked_once_more_and_then_waited_for(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_PAUSE", 0.0)
    options, log = ReconnectOptions(reconnect_jitter=0.0), logging.getLogger("test")
    Link[Any](Endpoint("nsqd", 4150), Failing(*[Again.LATER] * 6), options, random.Random(5), log).run()
    assert pauses == [8.0, 16.0, 32.0]


class Interrupted(Owner):
    """A signal handler raises at its first call of that name."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(Again.AT_ONCE, Again.AT_ONCE)
        self.error: BaseException | None = error
        self.lost: list[NSQError] = []
        called = getattr(self, where)

        def struck(*args: Any) -> Any:
            error, self.error = self.error, None
            if error is not None:
                raise error
            return called(*args)

        setattr(self, where, struck)

    def on_lost(self, reason: NSQError) -> Again:
        self.lost.append(reason)
        return super().on_lost(reason)


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("where", ["make_connection", "on_lost", "is_over"])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemExit(5), ValueError(), gevent.Timeout()],
    ids=lambda error: type(error).__name__,
)
def test_what_a_signal_handler_raises_in_a_link_ends_no_more_than_its_connection(
    monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    """And what ends a program comes out in the main greenlet."""
    monkeypatch.setattr(loop, "_PAUSE", 0.0)
    owner = Interrupted(where, error)
    log, options = logging.getLogger("test"), ReconnectOptions(reconnect_jitter=0.0)
    raised: list[BaseException] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_system_error", lambda kind, value, *more: raised.append(value))
    task = gevent.spawn(Link[Any](Endpoint("nsqd", 4150), owner, options, random.Random(5), log).run)
    task.join(5.0)
    assert task.successful()
    assert not owner.follows
    assert len(owner.lost) == 2
    assert raised == ([error] if isinstance(error, (KeyboardInterrupt, SystemExit)) else [])
