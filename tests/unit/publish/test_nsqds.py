"""The state that a Writer keeps of each nsqd, and which nsqds its threads try; no network, no waits."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.publish.nsqds import RETRY_AFTER, SILENT_AFTER, Connections, Nsqd, Nsqds

A, B, C = (Endpoint(host, 4150) for host in "abc")


class Connection(SimpleNamespace):
    owes_since = 0.0


def nsqds(*endpoints: Endpoint) -> Nsqds:
    made = Nsqds(2, takes_turns=True)
    made.add(endpoints)
    return made


@pytest.mark.rule("PUB-4")
def test_nsqds_take_turns_and_a_failed_one_is_left_out_until_it_may_be_tried_again() -> None:
    all_nsqds = nsqds(A, B, C)
    firsts = [all_nsqds.first(0.0) for _ in range(6)]
    assert firsts[:3] == firsts[3:]
    assert len(set(firsts)) == 3
    failed = all_nsqds.get(B)
    failed.fail(10.0)
    assert failed not in {all_nsqds.first(10.0 + RETRY_AFTER - 0.1) for _ in range(3)}
    assert failed not in all_nsqds.usable(10.0)
    assert failed in {all_nsqds.first(10.0 + RETRY_AFTER) for _ in range(3)}


@pytest.mark.rule("PUB-4")
def test_silent_nsqds_are_used_only_if_no_other_can_be_used_and_failed_ones_never() -> None:
    all_nsqds = nsqds(A, B)
    silent, other = all_nsqds.get(A), all_nsqds.get(B)
    connection = Connection(owes_since=1.0)
    silent.shared.enter(connection)
    assert silent in all_nsqds.usable(1.0 + SILENT_AFTER)
    now = 1.2 + SILENT_AFTER
    assert all_nsqds.usable(now) == [other]
    other.fail(now)
    assert all_nsqds.usable(now) == [silent]
    silent.fail(now)
    assert all_nsqds.usable(now) == []
    connection.owes_since = 0.0
    assert silent.is_avoided(now + 0.2)  # it has failed
    assert not silent.is_avoided(now + RETRY_AFTER)


@pytest.mark.rule("PUB-4")
def test_a_connection_frees_its_place_when_it_is_closed_or_collected() -> None:
    group = nsqds(A).get(A).shared
    first, second = Connection(), Connection()
    leave = group.enter(first)
    group.enter(second)
    assert group.is_led()
    with pytest.raises(IndexError):
        group.enter(Connection())
    assert group.all() == [first, second]
    leave()
    leave()
    assert (group.all(), len(group.free)) == ([second], 1)
    del second
    gc.collect()
    assert (group.all(), len(group.free), group.is_led()) == ([], 2, False)


@pytest.mark.rule("PUB-1")
def test_the_shortest_round_trip_of_a_second_decides_whether_an_nsqd_is_near_or_far() -> None:
    nsqd = nsqds(A).get(A)
    nsqd.measured(0.02, 100.0)
    assert (nsqd.is_far, nsqd.is_near) == (True, False)
    nsqd.measured(0.004, 100.5)  # one is decided at the end of the second
    assert nsqd.is_far
    nsqd.measured(0.02, 101.1)
    assert (nsqd.is_far, nsqd.is_near) == (False, False)
    nsqd.measured(0.0001, 101.2)  # but a short one at once
    assert (nsqd.is_far, nsqd.is_near) == (False, True)


def test_threads_of_a_dialect_with_leaders_wait_for_their_leader_alone() -> None:
    routed = Nsqds(2, takes_turns=False)
    assert routed.get(A).shared.queue is not routed.get(B).shared.queue
    plain: Any = nsqds(A, B)
    assert plain.get(A).shared.queue is plain.get(B).shared.queue
    assert plain.get(A).shared.queue is not plain.get(A).large.queue
    assert isinstance(plain.get(A), Nsqd)
    assert isinstance(plain.get(A).shared, Connections)
    assert [each.endpoint for each in plain.remove([A])] == [A]
    assert [each.endpoint for each in plain.in_turn] == [B]
