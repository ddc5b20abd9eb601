"""Which connection a publishing thread uses; no network, no waits."""

from __future__ import annotations

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
