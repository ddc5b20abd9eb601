"""Replacement of processes, and notifications to the service manager."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnsq_lite.supervise.children import NEVER, Child
from gnsq_lite.supervise.notify import Notifier
from gnsq_lite.supervise.restarts import LONGEST, WELL_AFTER, Restarts
from gnsq_lite.supervise.rolling import Rolling
from gnsq_lite.supervise.shared_memory import ProcessMemory
from tests.fakes import FakeClock


def child(folder: Path, number: int, clock: FakeClock, name: str = "") -> Child:
    socket = str(folder / f"{number}{name}.sock")
    Path(socket).touch()
    return Child(number, Restarts(clock), socket, pid=os.getpid(), memory=ProcessMemory(socket))


def of_process(child: Child) -> ProcessMemory:
    """Return the memory of *child* as the process itself maps it."""
    return ProcessMemory(child.socket)


@pytest.mark.parametrize(
    ("old", "new", "takes_over"),
    [
        ((2, 2), (2, 2), True),
        ((2, 2), (1, 2), False),
        ((2, 2), (0, 0), False),
        ((1, 2), (1, 2), True),  # a topic that no nsqd has yet
        ((3, 3), (2, 2), True),  # the new code has fewer handlers
        ((0, 1), (0, 1), True),
        ((0, 0), (0, 0), False),
    ],
)
def test_a_new_process_replaces_the_old_one_when_it_is_as_ready(
    tmp_path: Path, old: tuple[int, int], new: tuple[int, int], takes_over: bool
) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, 0, clock)]
    first = children[0]
    first.replace_at = clock.now()
    assert rolling.begin(children, clock.now())
    rolling.replacement = child(tmp_path, 0, clock, "new")
    for each, counts in ((first, old), (rolling.replacement, new)):
        of_process(each).ready, of_process(each).handlers = counts
    assert (rolling.take_over(children) is first) == takes_over
    assert (rolling.replacement is None) == takes_over == (children[0] is not first)


def test_a_late_new_process_is_dropped_and_the_old_ones_stay_until_the_next_request(tmp_path: Path) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, n, clock) for n in range(2)]
    for each in children:
        of_process(each).has_changed = 1
    assert rolling.begin(children, clock.now())
    clock.advance(59.9)
    assert not rolling.is_late(clock.now())
    clock.advance(0.1)
    assert rolling.is_late(clock.now())
    rolling.give_up(children, "was late")
    assert rolling.replacement is None
    assert not rolling.is_late(clock.now())
    assert not rolling.begin(children, clock.now())
    of_process(children[1]).has_changed = 1
    assert rolling.begin(children, clock.now())
    assert rolling.replacement.number == 1


def test_a_process_that_reaches_a_limit_soon_is_replaced_with_growing_delays(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    rolling, children = Rolling(60.0), [child(tmp_path, 0, clock)]
    delays = []
    for _ in range(8):
        of_process(children[0]).ask_to_be_replaced("it uses 2 MiB")
        assert not rolling.begin(children, clock.now())
        delays.append(children[0].replace_at - clock.now())
        clock.advance(delays[-1])
        assert rolling.begin(children, clock.now())
        rolling.give_up(children, "did not load")
        children[0].restarts.started()
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == LONGEST
    clock.advance(WELL_AFTER)
    assert not rolling.begin(children, clock.now())
    assert children[0].replace_at - clock.now() == 0.5


def test_a_process_that_does_not_run_is_not_replaced(tmp_path: Path) -> None:
    clock = FakeClock()
    children = [child(tmp_path, 0, clock)]
    children[0].ended(0)
    assert list(tmp_path.iterdir()) == []
    children[0].replace_at = clock.now()
    assert not Rolling(60.0).begin(children, clock.now())
    assert children[0].start_at == NEVER


def test_watchdog_messages_are_sent_at_half_the_limit_and_a_status_only_once() -> None:
    clock, heard = FakeClock(), []
    environ = {"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid()), "X": "x"}
    notifier = Notifier(environ, clock, lambda text, address: heard.append((text, address)))
    assert environ == {"X": "x"}
    notifier.alive()
    clock.advance(4.9)
    notifier.alive()
    assert heard == [(b"WATCHDOG=1", "\0n")]
    clock.advance(0.1)
    notifier.alive()
    notifier.status("1 of 2")
    notifier.status("1 of 2")
    notifier.ready()
    assert [text for text, _ in heard[1:]] == [b"WATCHDOG=1", b"STATUS=1 of 2", b"READY=1"]
    for other in ({"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"NOTIFY_SOCKET": ""}):
        assert Notifier({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1000000", **other}, clock).due == NEVER, other
