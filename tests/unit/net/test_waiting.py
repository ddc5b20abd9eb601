"""Waits of the loop's own greenlets in whose middle a signal handler waits for something of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from gnsq_lite.net.loop import let_io, loop_here
from gnsq_lite.net.waiting import Parking, wait_or_set
from tests.struck import struck


def park(wake: bool) -> bool:
    parking = Parking()
    if wake:
        loop_here().call_soon(parking.wake)
    return parking.park(0.0 if not wake else None)


def ring(wake: bool) -> bool:
    event = Event()
    if wake:
        loop_here().call_soon(event.set)
    wait_or_set(event, 0.0 if not wake else None)
    return event.is_set()


@pytest.mark.rule("CONN-2")
@pytest.mark.parametrize(
    ("wait", "wake", "seen"), [(park, True, True), (park, False, False), (ring, True, True), (ring, False, True)]
)
def test_a_handler_that_outlasts_the_wait_that_it_interrupted_disturbs_it_as_little_as_it_is_disturbed(
    wait: Callable[[bool], bool], wake: bool, seen: bool
) -> None:
    hub = gevent.get_hub()

    def handler() -> None:
        for _ in range(3):  # each raises where something else resumes it
            let_io(hub)

    for step in itertools.count(1):
        returned: list[bool] = []
        if not struck(step, lambda returned=returned: returned.append(wait(wake)), handler):  # type: ignore[misc]
            break
        assert returned == [seen], step
    assert step > 5
