"""Fixture with a fake clock."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
