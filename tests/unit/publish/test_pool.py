"""When the pool tries a failed nsqd again, and its end; tests/system/test_pool.py has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Dialect, Endpoint
from gnsq_lite.options import ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.publish.pool import RETRY_AFTER, ForLoop, Pool
from gnsq_lite.publish.settings import ProducerSettings
from tests.fakes import FakeClock


class Connection:
    """A connection whose calls do what the test has set for its node."""

    negotiated = auth_reply = None

    def __init__(self, bench: Bench, endpoint: Endpoint) -> None:
        self.bench, self.endpoint = bench, endpoint
        self.opened_at: float | None = None
        self.read_at = self.busy_since = 0.0
        self.published = 0
        self.is_sent = self.is_closed = False
        self.quiet = True

    def open(self, address: Any, seconds: float, identify_extra: Any) -> None:
        self.bench.opened += 1
        self.bench.on_open(self)
        self.opened_at = self.bench.clock.now()

    def exchange(self, command: bytes, timeout: float, deadline: float) -> bytes:
        self.is_sent = False
        return self.bench.on_exchange(self)

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self, *, close_notify: bool = False) -> None:
        self.is_closed = True

    shut_down = close


class Bench:
    """A pool of fake connections."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.clock = FakeClock()
        self.opened = 0
        self.made: list[Connection] = []
        self.on_open: Callable[[Connection], None] = lambda connection: None
        self.on_exchange: Callable[[Connection], bytes] = lambda connection: b"OK"
        settings = ProducerSettings(
            dialect=Dialect(),
            endpoints=endpoints,
            lookupds=(),
            connection=ConnectionOptions(),
            reconnect=WriterReconnectOptions(reconnect_jitter=0.0),
            lookup=LookupOptions(),
            max_body_size=5_000_000,
            max_pending=1_000_000,
            coalesce=False,
            retries=0,
            max_connections=3,
        )
        self.pool = Pool(settings, self.clock, self.connect)
        self.pool.add(endpoints)

    def connect(self, endpoint: Endpoint) -> Any:
        self.made.append(Connection(self, endpoint))
        return self.made[-1]

    def publish(self, timeout: float = 15.0) -> Any:
        return self.pool.publish("t", b"PUB t\n", timeout)


def refuse(connection: Connection) -> None:
    raise errors.ConnectError(connection.endpoint.host, "refused")


@pytest.fixture
def one() -> Bench:
    return Bench(Endpoint("a", 4150))


@pytest.mark.rule("PUB-4")
def test_a_failed_node_rests_and_is_then_tried_by_one_publish(one: Bench) -> None:
    one.on_open = refuse
    assert isinstance(one.publish(), ForLoop)
    one.clock.advance(RETRY_AFTER - 0.1)
    assert isinstance(one.publish(), ForLoop)
    assert one.opened == 1
    one.clock.advance(0.2)
    others: list[Any] = []
    one.on_open = lambda connection: others.append(one.publish())
    assert one.publish() is None
    assert [type(each) for each in others] == [ForLoop]
    assert one.opened == 2
