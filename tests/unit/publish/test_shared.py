"""Which connection a publishing thread uses; no network, no waits."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Writer
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.dialect import Endpoint
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import Counts, Publish
from gnsq_lite.publish.shared import SharedConnections


class Connection(SimpleNamespace):
    owes_since = 0.0
    read_at = float("inf")  # it has just been used
    is_usable, unanswered = True, ()


@pytest.mark.parametrize(("hosts", "leads"), [("a", False), ("ab", True)])
def test_a_thread_waits_for_one_that_leads_if_threads_outnumber_the_connections_to_all_nsqds(
    hosts: str, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds = Nsqds(2, takes_turns=False)
    group, *_ = [nsqds.get(Endpoint(host, 4150, number)).shared for number, host in enumerate(hosts)]
    group.nsqd.is_near = True
    led, idle = Connection(), Connection()
    for each in (led, idle):
        group.enter(each)
    group.idle.append(idle)
    threads = SharedConnections(Writer("a", max_connections=2)._settings, nsqds, Counts())
    used: list[Any] = []
    monkeypatch.setattr(threads, "_lead", lambda connection, *_: used.append(connection))
    threads._publishing.update(range(3))
    publish = Publish("t", (b"x",), 1.0, 1.0)
    assert threads._try_one(group, publish, SYSTEM_CLOCK.now(), False) is leads
    assert used == ([idle] if leads else [])


class TakenMeanwhile(deque[Any]):
    """Idle connections that other threads take before this thread can read the first one."""

    def __getitem__(self, index: Any) -> Any:
        raise IndexError


def test_a_thread_passes_its_connection_on_while_other_threads_take_the_idle_ones() -> None:
    nsqds = Nsqds(2, takes_turns=False)
    group: Any = nsqds.get(Endpoint("a", 4150)).shared
    group.idle = TakenMeanwhile([Connection()])
    threads = SharedConnections(Writer("a")._settings, nsqds, Counts())
    connection: Any = Connection(group=group)
    threads._pass_on(connection)
    assert len(group.idle) == 2
