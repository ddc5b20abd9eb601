"""Who leads which partition, and since when: the embedded cluster with a clock that is moved by hand."""

from __future__ import annotations

from gnsq_lite.broker.options import BrokerOptions
from tests.fakes import FakeClock
from tests.youzan_broker.cluster import Cluster


def cluster_of(nodes: int, *, replica: int = 2) -> tuple[Cluster, FakeClock]:
    clock = FakeClock()
    cluster = Cluster(nodes, BrokerOptions(), clock)
    for node in range(nodes):
        cluster.node_up(node)
    cluster.create("t", 1, replica)
    return cluster, clock


def leader(cluster: Cluster) -> int | None:
    seat = cluster.seat("t", 0)
    assert seat is not None
    return seat.leader


def test_by_default_another_replica_leads_at_once() -> None:
    cluster, _ = cluster_of(2)
    cluster.node_down(0)
    assert leader(cluster) == 1


def test_failover_takes_the_time_it_is_told_to() -> None:
    cluster, clock = cluster_of(2)
    cluster.node_down(0, 30.0)
    assert leader(cluster) is None
    clock.advance(29.9)
    cluster.scan()
    assert leader(cluster) is None
    clock.advance(0.2)
    cluster.scan()
    assert leader(cluster) == 1


def test_a_leader_that_is_back_before_its_time_leads_again_and_another_node_does_not() -> None:
    cluster, clock = cluster_of(3, replica=3)
    cluster.node_down(0, 30.0)
    cluster.node_down(2)
    cluster.node_up(2)
    assert leader(cluster) is None
    cluster.node_up(0)
    assert leader(cluster) == 0
    clock.advance(60.0)
    cluster.scan()
    assert leader(cluster) == 0


def test_a_leader_that_is_moved_by_hand_stays() -> None:
    cluster, clock = cluster_of(3, replica=3)
    cluster.node_down(0, 30.0)
    cluster.move("t", 0, 2)
    clock.advance(60.0)
    cluster.scan()
    assert leader(cluster) == 2


def test_what_nobody_can_take_over_waits_for_a_replica() -> None:
    cluster, clock = cluster_of(2, replica=1)
    cluster.node_down(0, 30.0)
    clock.advance(60.0)
    cluster.scan()
    assert leader(cluster) is None
    cluster.node_up(0)
    assert leader(cluster) == 0
