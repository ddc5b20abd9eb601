"""Which nsqlookupds are asked, and which owe an answer."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from gnsq_lite.net.ask_lookupds import Lookupds
from gnsq_lite.options import LookupOptions


@pytest.mark.rule("DISC-1")
def test_one_whose_question_was_ended_as_it_began_is_asked_again() -> None:
    """A signal handler may raise before the greenlet's first line."""
    told: list[Any] = []
    lookupds = Lookupds(["l:1"], LookupOptions(), fetch=lambda address, path: path)

    def ask(path: str) -> list[str]:
        return lookupds.ask(path, str, lambda address, answer, error: told.append(answer))

    assert ask("/1") == ["l:1"]
    assert ask("/2") == []  # it owes the first
    lookupds._busy["l:1"].kill()  # before it has begun
    assert ask("/3") == ["l:1"]
    gevent.sleep(0)
    assert told == ["/3"]
