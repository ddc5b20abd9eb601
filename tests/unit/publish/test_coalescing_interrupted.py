"""Coalesced publishes in whose middle a signal handler waits, or publishes itself."""

from __future__ import annotations

import itertools
from typing import Any

import gevent
import pytest

from gnsq_lite import errors
from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish.publication import Publication
from tests.struck import struck
from tests.unit.publish.test_coalescing import Bench, end_turn


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("handler", ["waits", "is answered", "publishes"])
@pytest.mark.parametrize("kind", ["publish", "submit", "batch"])
@pytest.mark.parametrize("before", [[], [b"1"]])
def test_a_handler_that_waits_in_the_middle_of_a_publish_has_nothing_lost_or_doubled(
    monkeypatch: pytest.MonkeyPatch, before: list[bytes], kind: str, handler: str
) -> None:
    soon = loop_here().soon

    def seen_soon(*call: Any) -> None:  # gevent's, of which no profiler is told
        soon(*call)

    monkeypatch.setattr(loop_here(), "soon", seen_soon)
    for step in itertools.count(1):
        bench, came = Bench(), list[Any]()
        sent: list[bytes] = []
        send_publish = bench.wire.send_publish

        def note(publication: Publication, sent: list[bytes] = sent, send: Any = send_publish) -> bool:
            sent.extend(publication.bodies)
            return bool(send(publication))

        def strike(bench: Bench = bench, came: list[Any] = came) -> None:
            if handler == "publishes":
                came.append("struck")
                try:
                    bench.publish(b"3")
                except errors.NotSent:
                    came.append("refused")
            else:
                end_turn()
                if handler == "is answered":
                    bench.answer()
                    end_turn()

        def act(bench: Bench = bench) -> None:
            if kind == "publish":
                bench.publish(b"2")
            elif kind == "submit":
                bench.submit(b"2").result()
            else:
                publication = Publication(loop_here(), "t", [b"2"], 5.0, bench.clock.now() + 5, batch=True)
                bench.producer.submit(publication)
                publication.result()

        bench.wire.send_publish = note  # type: ignore[method-assign]
        ends: list[bool] = []
        greenlets = [gevent.spawn(bench.publish, body) for body in before]
        greenlets.append(gevent.spawn(lambda: ends.append(struck(step, act, strike))))  # noqa: B023 - in this round
        for _ in range(20):
            end_turn()
            bench.answer()
        assert {each.exception or each.ready() for each in greenlets} == {True}, step
        assert sorted(sent) == [*before, b"2"] + [b"3"] * (len(came) == 1), step
        if not ends[0]:
            break
    assert step > 10
