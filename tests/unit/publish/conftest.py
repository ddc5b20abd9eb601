"""Cores on fakes have nothing to send when the interpreter exits, and nothing to reset after their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gnsq_lite.net.loop import loop_here
from gnsq_lite.publish import core


@pytest.fixture(autouse=True)
def ends_with_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(core, "close_at_exit", lambda core: None)
    loop_here().cores.clear()  # those of other packages' tests
    yield
    loop_here().cores.clear()
