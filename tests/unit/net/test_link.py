"""How long a link waits between two connections.  The tests use no network and do not wait."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ConnectError, NSQError
from gnsq_lite.net import link
from gnsq_lite.net.link import Again, Link
from gnsq_lite.options import ReconnectOptions


class Owner:
    """Owner of a link whose connections all fail with *error*; *follows* are its answers to on_lost()."""

    def __init__(self, *follows: Again, error: BaseException | None = None) -> None:
        self.follows = list(follows)
        self.error = error or ConnectError("nsqd:4150", "refused")
        self.reasons: list[str] = []

    def make_connection(self) -> Any:
        raise self.error

    def on_lost(self, reason: NSQError) -> Again:
        self.reasons.append(str(reason))
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
    monkeypatch.setattr(link, "sleep", append)
    return found


def run(*follows: Again, error: BaseException | None = None) -> Owner:
    options, owner = ReconnectOptions(reconnect_jitter=0.0), Owner(*follows, error=error)
    Link[Any](Endpoint("nsqd", 4150), owner, options, random.Random(5), logging.getLogger("test")).run()
    return owner


@pytest.mark.rule("CONN-3")
def test_pauses_grow_and_start_again_after_a_useful_connection(pauses: list[float]) -> None:
    later, soon = Again.LATER, Again.SOON
    run(later, later, later, soon, soon, later, Again.NEVER, later)
    assert pauses == [8.0, 16.0, 32.0, 8.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("error", "why"),
    [(OSError(errno.EMFILE, "Too many open files"), "Too many open files"), (MemoryError(), "out of memory")],
    ids=["EMFILE", "MemoryError"],
)
def test_a_connection_without_descriptor_or_memory_is_a_lost_connection(
    pauses: list[float], error: BaseException, why: str
) -> None:
    owner = run(Again.LATER, Again.LATER, error=error)
    assert owner.reasons == [f"nsqd:4150: cannot connect: {why}"] * 2
    assert pauses == [8.0, 16.0]


def test_a_timeout_error_of_a_signal_handler_passes_through_the_link(pauses: list[float]) -> None:
    with pytest.raises(TimeoutError, match="alarm"):
        run(Again.LATER, error=TimeoutError("the program's alarm"))
