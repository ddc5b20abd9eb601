"""A publish until its bytes are written."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from gnsq_lite import Reader, Writer, errors
from gnsq_lite.dialect import PublishRequest
from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish.publication import PUBLISHED, Counts, Publication, Publish
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.wire import commands
from tests.fakes import FakeClock
from tests.unit.publish.conftest import publish_in_loop
from tests.unit.publish.cores import core_with, publish_of


def publication(bodies: Sequence[bytes], batch: bool = False) -> Publish:
    return publish_in_loop(loop_here(), "t", bodies, 5.0, 5.0, batch=batch)


@pytest.mark.rule("PUB-1")
@pytest.mark.parametrize(
    ("bodies", "batch", "command"),
    [
        ((b"a\nb",), False, commands.publish("t", b"a\nb")),
        ([b"a"], True, commands.multipublish("t", [b"a"])),
        ((b"a", b"bc\n"), True, commands.multipublish("t", [b"a", b"bc\n"])),
    ],
)
def test_it_is_bytes_for_any_nsqd_and_a_request_for_a_dialect(
    bodies: Sequence[bytes], batch: bool, command: bytes
) -> None:
    publish = publication(bodies, batch)
    assert (publish.command(), publish.data) == (command, b"")  # made when written, and not kept
    assert publish.as_request() == PublishRequest(topic="t", bodies=bodies, batch=batch)
    assert publish.count == len(bodies)


def test_bytes_that_were_made_to_check_it_or_for_its_leader_are_not_made_again() -> None:
    publish = publication((b"x",))
    publish.data = b"DPUB t 5\n\0\0\0\1x"
    assert publish.command() is publish.data


@pytest.mark.parametrize("of", [Reader, Writer])
def test_what_is_public_takes_nothing_private(of: type) -> None:
    methods = [method for name, method in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")]
    assert methods
    assert [name for method in methods for name in inspect.signature(method).parameters if name.startswith("_")] == []


def test_a_callback_is_called_once_with_the_outcome_whenever_it_is_added() -> None:
    publish, told = publication((b"x",)), []
    handle: Any = Publication(publish)
    handle.add_done_callback(told.append)
    assert told == []
    publish.settle(5)
    publish.settle(6)
    handle.add_done_callback(lambda done: told.append(done.result()))
    assert told == [handle, 5]


def test_what_a_callback_raises_is_logged_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    publish, told = publication((b"x",)), []
    handle = Publication(publish)
    handle.add_done_callback(lambda done: 1 / 0)
    handle.add_done_callback(told.append)
    publish.settle()
    assert told == [handle]
    assert "a callback of a publish to t failed" in caplog.text


def test_publishes_in_the_background_may_have_64_mib_and_not_one_byte_more() -> None:
    (most,) = (each.default for each in fields(ProducerSettings) if each.name == "max_pending")
    assert most == 64 * 1024 * 1024
    core = core_with(FakeClock(), max_pending=most)
    one, another = (publish_of(core, b"x", 1.0) for _ in range(2))
    core.outcomes.reserve(one, most - 1)
    core.outcomes.reserve(another, 1)
    with pytest.raises(errors.BacklogFull, match=str(most)):
        core.outcomes.reserve(publish_of(core, b"x", 1.0), 1)
    assert core.outcomes.backlog == most
    core.outcomes.release(another)
    core.outcomes.reserve(publish_of(core, b"x", 1.0), 1)


def test_what_the_garbage_collector_counts_while_a_thread_begins_to_count_is_not_lost() -> None:
    counts = Counts()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            counts.cells["thread"][PUBLISHED] += 1

    threshold = gc.get_threshold()
    gc.disable()
    try:
        Cycle()
        gc.set_threshold(1)
        gc.enable()
        counts.cells["thread"][PUBLISHED] += 1
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    gc.collect()
    assert counts.totals()[PUBLISHED] == 2
