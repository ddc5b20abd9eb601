"""Cores on fakes have nothing to send when the interpreter exits, so nothing waits for them then."""

from __future__ import annotations

import pytest

from gnsq_lite.publish import core


@pytest.fixture(autouse=True)
def stays_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "close_at_exit", lambda core: None)
