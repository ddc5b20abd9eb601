"""Waiting for the outcomes of all; without a network and without waiting."""

from __future__ import annotations

from collections.abc import Iterable

import gevent
import pytest

from gnsq_lite.dialect import PlainDialect
from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.outcomes import Outcomes
from gnsq_lite.publish.publication import Publication
from tests.fakes import FakeClock
from tests.unit.publish.test_coalescing import Bench, end_turn

OK = b"\0\0\0\6\0\0\0\0OK"


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("in_thread", [False, True])
def test_who_waits_for_all_costs_one_look_for_all_that_a_turn_settles(in_thread: bool) -> None:
    publications = [Publication(loop_here(), "t", (b"x",), 5.0, 5.0) for _ in range(100)]
    looks: list[int] = []

    def everything() -> Iterable[Publication]:
        looks.append(1)
        return publications

    queue = AnswerQueue(publications, read=PlainDialect().receipt)
    outcomes = Outcomes(loop_here(), FakeClock(), 1000, everything)
    waits = gevent.spawn(outcomes.drain, 5.0)
    gevent.sleep(0)
    before = len(looks)
    for publication in publications:
        if in_thread:
            assert queue.take_oks(OK, outcomes.taken)
        else:
            outcomes.succeed(publication, None)
    for _ in range(3):
        gevent.sleep(0)
    assert waits.value is True
    assert len(looks) <= before + 2
    assert outcomes.published == 100


@pytest.mark.rule("PUB-2")
def test_what_another_thread_has_handed_over_before_a_close_is_waited_for_and_sent() -> None:
    bench = Bench()
    publication = Publication(loop_here(), "t", (b"x",), 5.0, bench.clock.now() + 5)
    bench.producer.threads._entering.append(publication)  # and has not told the loop
    assert bench.producer.outcomes.unsettled() == 1
    closing = gevent.spawn(bench.producer.close, 5.0)
    end_turn()
    assert not closing.ready()
    bench.answer()
    assert publication.result(0) is None
