"""pytest fixtures for programs that use NSQ; installed with the library, no import is needed.

``nsq_broker``: an embedded nsqd and nsqlookupd of the test's own.  ``nsq_writer``: a Writer connected to it.  Nothing of
the library is imported before a test asks for one of them.
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
    """Run an nsqd and a nsqlookupd in memory, on free ports, until the test ends."""
    from gnsq_lite.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def nsq_writer(nsq_broker: Broker) -> Iterator[Writer]:
    """Return a Writer connected to ``nsq_broker``."""
    from gnsq_lite import Writer

    with Writer(nsq_broker.nsqd_tcp_address) as writer:
        yield writer
