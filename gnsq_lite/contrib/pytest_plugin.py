"""Pytest plugin with the fixtures ``nsq_broker``, ``nsq_writer`` and ``nsq_worker``, installed with gnsq_lite.

The plugin imports only pytest until a test uses a fixture.  So other test runs cost nothing, and gevent is not imported
before a conftest.py that monkey-patches, or before coverage starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gnsq_lite import Worker, Writer
    from gnsq_lite.broker import Broker

#: Seconds within which a Worker must be connected, and within which its handlers must return at the end of the test.
_LIMIT = 10.0


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "nsq_broker(**options): options of gnsq_lite.broker.Broker, such as like_nsqd=True"
    )


@pytest.fixture
def nsq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Start a :class:`gnsq_lite.broker.Broker` for one test, with the options of the marker ``nsq_broker``."""
    from gnsq_lite.broker import Broker

    marker = request.node.get_closest_marker("nsq_broker")
    with Broker(**(marker.kwargs if marker is not None else {})) as broker:
        yield broker


@pytest.fixture
def nsq_writer(nsq_broker: Broker) -> Iterator[Writer]:
    """Make a Writer that is connected to ``nsq_broker``."""
    from gnsq_lite import Writer

    with Writer(nsq_broker.nsqd_tcp_address) as writer:
        yield writer


@pytest.fixture
def nsq_worker(nsq_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Return a function that runs a copy of a Worker with ``nsq_broker`` until the end of the test.

    The function takes a Worker, a module, or a text such as ``"shop.tasks:worker"``, and options that override the
    Worker's and the handlers' own ones.  It returns the running copy when all its handlers are connected.  Meanwhile
    ``worker.writer()`` of the original returns the copy's Writer, so handlers publish to ``nsq_broker``.
    """
    running: list[Worker] = []

    def run(target: Worker | ModuleType | str, **options: Any) -> Worker:
        worker = _worker_of(target)
        addresses = {"nsqd_tcp_addresses": list(nsq_broker.nsqd_tcp_addresses), "lookupd_http_addresses": ()}
        copy = worker.copy(**{**addresses, **options})
        monkeypatch.setattr(worker, "writer", copy.writer)
        copy.start()
        running.append(copy)
        ends = time.monotonic() + _LIMIT
        while not all(each.connections for each in copy.stats()):
            if time.monotonic() > ends:
                raise TimeoutError(f"not all handlers are connected to nsq_broker: {copy.stats()}")
            time.sleep(0.005)
        return copy

    yield run
    drained = [each.close(_LIMIT) for each in reversed(running)]
    if not all(drained):
        pytest.fail(f"handlers still ran {_LIMIT:g} s after the end of the test")


def _worker_of(target: Worker | ModuleType | str) -> Worker:
    from gnsq_lite import Worker
    from gnsq_lite.worker.loading import load

    if isinstance(target, Worker):
        return target
    return load(target.__name__ if isinstance(target, ModuleType) else target, Worker, "worker")
