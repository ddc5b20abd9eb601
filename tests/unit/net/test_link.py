"""How long a link waits between two connections.  The tests use no network and do not wait."""

from __future__ import annotations

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
    """Owner of a link whose connections all fail; *follows* are its answers to on_lost()."""

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
    monkeypatch.setattr(link, "sleep", append)
    return found


def run(*follows: Again) -> None:
    options = ReconnectOptions(reconnect_jitter=0.0)
    Link[Any](Endpoint("nsqd", 4150), Owner(*follows), options, random.Random(5), logging.getLogger("test")).run()


@pytest.mark.rule("CONN-3")
def test_pauses_grow_and_start_again_after_a_useful_connection(pauses: list[float]) -> None:
    later, soon = Again.LATER, Again.SOON
    run(later, later, later, soon, soon, later, Again.NEVER, later)
    assert pauses == [8.0, 16.0, 32.0, 8.0, 8.0, 16.0]
