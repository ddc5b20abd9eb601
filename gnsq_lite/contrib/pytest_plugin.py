"""Fixtures for pytest, available if gnsq_lite is installed: ``nsq_broker``, ``nsq_writer``.

Only pytest is imported until a test uses a fixture: other runs cost nothing, and gevent is not loaded
before a conftest.py that patches, nor before coverage has started.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gnsq_lite import Writer
    from gnsq_lite.broker import Broker


@pytest.fixture
def nsq_broker() -> Iterator[Broker]:
    """An nsqd and an nsqlookupd in memory for this test: :class:`gnsq_lite.broker.Broker`."""
    from gnsq_lite.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def nsq_writer(nsq_broker: Broker) -> Iterator[Writer]:
    """A Writer to ``nsq_broker``."""
    from gnsq_lite import Writer

    with Writer(nsq_broker.nsqd_tcp_address) as writer:
        yield writer
