"""An event loop without a hub: a test decides when its callbacks and timers run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.fakes import FakeClock
from tests.native import native_ident


class FakeTimer:
    """One timer of a FakeLoop."""

    def __init__(self, seconds: float, due: float, act: Callable[[], object]) -> None:
        self.seconds, self.due, self.act, self.active = seconds, due, act, True

    def stop(self) -> None:
        self.active = False

    close = stop


class FakeLoop:
    """Runs callbacks in turn(), timers in advance(), and greenlets in run_spawned()."""

    is_shared = False

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock, self.ident, self.hub = clock or FakeClock(), native_ident(), SimpleNamespace(loop=None)
        self.guard = contextlib.nullcontext()
        self.callbacks = list[Callable[[], object]]()
        self.timers, self.spawned = list[FakeTimer](), list[tuple[Any, ...]]()

    def call_soon(self, act: Callable[..., object], *args: object) -> None:
        self.callbacks.append(lambda: act(*args))

    soon = call_soon

    def timer(self, seconds: float, act: Callable[[], object]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, self.clock.now() + seconds, act))
        return self.timers[-1]

    def spawn(self, name: str, act: Callable[..., object], *args: object) -> None:
        self.spawned.append((name, act, *args))

    def start(self, watcher: Any, act: Callable[..., object], **options: Any) -> None:
        watcher.start(act, **options)

    def running(self) -> list[float]:
        """Return the seconds of each active timer."""
        return [timer.seconds for timer in self.timers if timer.active]

    def turn(self) -> None:
        """Run the scheduled callbacks, and the callbacks that these schedule."""
        while self.callbacks:
            self.callbacks.pop(0)()

    def run_spawned(self) -> None:
        """Run the spawned greenlets, each to its end."""
        while self.spawned:
            _, act, *args = self.spawned.pop(0)
            act(*args)

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run the timers that are due."""
        self.clock.advance(seconds)
        for timer in [each for each in self.timers if each.active and self.clock.now() >= each.due - 1e-9]:
            timer.stop()
            timer.act()
