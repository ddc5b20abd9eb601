"""A pytest plugin to find races: threads switch every microsecond, and each test runs ``--repeat`` times.

``python -X dev -m pytest -p tests.races --repeat 100 tests/system/test_writer.py -k threads``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

#: Seconds between two switches; CPython's own is 5000 times as long.
INTERVAL = 1e-6


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --repeat."""
    parser.addoption("--repeat", type=int, default=1, help="run each test so often")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Multiply the tests."""
    count = metafunc.config.getoption("--repeat")
    if count > 1:
        metafunc.fixturenames.append("run_number")
        metafunc.parametrize("run_number", range(count), indirect=True)


@pytest.fixture
def run_number(request: pytest.FixtureRequest) -> int:
    """Which of the repeats this is."""
    number: int = request.param
    return number


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """Let threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL)
    yield
    sys.setswitchinterval(before)
