"""Which endpoints are avoided."""

from __future__ import annotations

import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.policy.shunned import Shunned

A0, A1, B2 = Endpoint("a", 4150, 0), Endpoint("a", 4150, 1), Endpoint("b", 4150, 2)


def avoided(shunned: Shunned) -> list[Endpoint]:
    return [endpoint for endpoint in (A0, A1, B2) if shunned.has(endpoint)]


@pytest.mark.rule("PUB-4")
def test_a_node_that_is_silent_is_avoided_with_all_its_partitions_until_one_answers() -> None:
    shunned = Shunned()
    assert avoided(shunned) == []
    shunned.add(A0, whole_node=True)
    assert avoided(shunned) == [A0, A1]
    shunned.add(A1, whole_node=True)
    shunned.discard(A1)
    assert avoided(shunned) == [A0]
    shunned.discard(A0)
    assert avoided(shunned) == []


@pytest.mark.rule("PUB-4")
def test_what_one_partition_refuses_is_not_held_against_the_node() -> None:
    shunned = Shunned()
    shunned.add(A0, whole_node=False)
    assert avoided(shunned) == [A0]
