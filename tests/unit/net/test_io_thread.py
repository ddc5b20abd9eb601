"""The library's own I/O thread, where another thread ends it as it begins; without a network and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.net import io_thread
from tests.native import native_held_lock, start_native_thread


class Hub:
    """Stands in for the hub of a thread: turns for good."""

    def __init__(self) -> None:
        self.is_destroyed = False

    def switch(self) -> None:
        native_held_lock().acquire()

    def destroy(self, destroy_loop: bool) -> None:
        self.is_destroyed = destroy_loop


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the loops of the threads that have begun."""
    made: list[Any] = []

    def make(*, keep_alive: bool) -> Any:
        made.append(SimpleNamespace(hub=Hub()))
        return made[-1]

    monkeypatch.setattr(io_thread, "loop_here", make)
    monkeypatch.setattr(io_thread, "_TO_BEGIN", 0.01)
    return made


def test_an_io_thread_that_never_begins_is_replaced_and_leaves_when_it_comes_late(
    loops: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Callable[[], None]] = []

    def start(name: str, run: Callable[[], None], refused: Any) -> None:
        started.append(run)
        if len(started) == 3:
            start_native_thread(name, run)

    monkeypatch.setattr(io_thread, "start_native_thread_soon", start)
    assert io_thread._start_own() is loops[0]
    started[0]()
    assert [loop.hub.is_destroyed for loop in loops] == [False, True]


@pytest.mark.parametrize("raises", [True, False])
def test_without_a_thread_the_reason_is_raised(loops: list[Any], monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    def start(name: str, run: Any, refused: Callable[[RuntimeError], None]) -> None:
        error = RuntimeError("can't start new thread")
        if raises:
            raise error
        refused(error)

    monkeypatch.setattr(io_thread, "start_native_thread_soon", start)
    with pytest.raises(errors.NSQError, match="the I/O thread cannot be started: can't start new thread") as caught:
        io_thread._start_own()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not loops
