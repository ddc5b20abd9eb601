"""Cores on fakes are not registered for the exit of the interpreter, and need no reset after a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gnsq_lite.clock import Clock
from gnsq_lite.net.loop import Loop, loop_here
from gnsq_lite.publish import publisher
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import Counts, Publish
from gnsq_lite.publish.settings import ProducerSettings


@pytest.fixture(autouse=True)
def ends_with_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(publisher, "close_at_exit", lambda core: None)
    loop_here().cores.clear()  # those of other packages' tests
    yield
    loop_here().cores.clear()


def core_of(settings: ProducerSettings, clock: Clock) -> publisher.WriterCore:
    """Return a core in the loop of this thread."""
    nsqds = Nsqds(settings.max_connections, takes_turns=True)
    return publisher.WriterCore(loop_here(), settings, nsqds, Counts(), clock)


def publish_in_loop(loop: Loop, topic: str, bodies: Sequence[bytes], *args: Any, **more: Any) -> Publish:
    """Return a publish that *loop* does."""
    publish = Publish(topic, bodies, *args, **more)
    publish.loop = loop
    return publish
