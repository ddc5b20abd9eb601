"""Which endpoints are avoided."""

from __future__ import annotations

import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.policy.shunned import Shunned

A0, A1, B2 = Endpoint("a", 4150, 0), Endpoint("a", 4150, 1), Endpoint("b", 4150, 2)


@pytest.mark.rule("PUB-4")
def test_what_says_nothing_ill_is_all_used() -> None:
    assert Shunned[Endpoint]().best((A0, A1, B2)) == (A0, A1, B2)


@pytest.mark.rule("PUB-4")
def test_a_node_that_is_silent_is_avoided_with_all_its_partitions_until_one_answers() -> None:
    shunned = Shunned[Endpoint]()
    shunned.add(A0, whole_node=True)
    assert shunned.best((A0, A1, B2)) == [B2]
    shunned.add(A1, whole_node=True)
    shunned.discard(A1)
    assert shunned.best((A0, A1, B2)) == [A1, B2]
    shunned.discard(A0)
    assert shunned.best((A0, A1, B2)) == (A0, A1, B2)


@pytest.mark.rule("PUB-4")
def test_what_one_partition_refuses_is_not_held_against_the_node() -> None:
    shunned = Shunned[Endpoint]()
    shunned.add(A0, whole_node=False)
    assert shunned.best((A0, A1, B2)) == [A1, B2]
    assert (shunned.has(A0), shunned.has(A1)) == (True, False)


@pytest.mark.rule("PUB-4")
def test_where_all_are_to_be_avoided_all_are_used() -> None:
    shunned = Shunned[Endpoint]()
    for endpoint in (A0, B2):
        shunned.add(endpoint, whole_node=True)
    assert shunned.best((A0, A1, B2)) == (A0, A1, B2)
