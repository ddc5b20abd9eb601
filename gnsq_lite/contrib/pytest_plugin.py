"""Pytest plugin with the fixtures ``nsq_broker`` and ``nsq_writer``.  It is installed together with gnsq_lite.

The plugin imports only pytest until a test uses a fixture.  So other test runs cost nothing, and gevent is not imported
before a conftest.py that monkey-patches, or before coverage starts.
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
    """Start a :class:`gnsq_lite.broker.Broker` for one test."""
    from gnsq_lite.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def nsq_writer(nsq_broker: Broker) -> Iterator[Writer]:
    """Make a Writer that is connected to ``nsq_broker``."""
    from gnsq_lite import Writer

    with Writer(nsq_broker.nsqd_tcp_address) as writer:
        yield writer
