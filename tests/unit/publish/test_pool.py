"""The pool's decisions, with connections that do no I/O and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import errors
from gnsq_lite.dialect import Endpoint, PlainDialect
from gnsq_lite.options import ConnectionOptions, LookupOptions, WriterReconnectOptions
from gnsq_lite.publish.pool import IDLE, REST, SILENT_AFTER, Left, Pool
from gnsq_lite.publish.settings import ProducerSettings
from tests.fakes import FakeClock

NODES = (Endpoint("a", 4150), Endpoint("b", 4150))


class Connection:
    """A connection whose calls do what the test has set for its node."""

    negotiated = auth_reply = None

    def __init__(self, bench: Bench, endpoint: Endpoint) -> None:
        self.bench, self.endpoint = bench, endpoint
        self.opened_at: float | None = None
        self.used_at = self.busy_since = 0.0
        self.published = 0
        self.is_sent = self.is_closed = False
        self.quiet = True

    def open(self, address: Any, seconds: float, identify_extra: Any) -> None:
        self.bench.opened.append((self.endpoint.host, round(seconds, 3)))
        self.bench.on_open(self)
        self.opened_at = self.bench.clock.now()

    def exchange(self, command: bytes, timeout: float, deadline: float) -> bytes:
        self.is_sent = False
        self.bench.sent.append(self.endpoint.host)
        return self.bench.on_exchange(self)

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self, *, goodbye: bool = False) -> None:
        self.is_closed = True

    shut_down = close


class Bench:
    """A pool of fake connections."""

    def __init__(self, *endpoints: Endpoint, retries: int = 0, max_connections: int = 3) -> None:
        self.clock = FakeClock()
        self.opened: list[tuple[str, float]] = []
        self.sent: list[str] = []
        self.made: list[Connection] = []
        self.on_open: Callable[[Connection], None] = lambda connection: None
        self.on_exchange: Callable[[Connection], bytes] = lambda connection: b"OK"
        settings = ProducerSettings(
            dialect=PlainDialect(),
            endpoints=endpoints,
            lookupds=(),
            connection=ConnectionOptions(),
            reconnect=WriterReconnectOptions(reconnect_jitter=0.0),
            lookup=LookupOptions(),
            max_body_size=5_000_000,
            max_pending=1_000_000,
            coalesce=False,
            retries=retries,
            max_connections=max_connections,
        )
        self.pool = Pool(settings, self.clock, self.connect)
        self.pool.add(endpoints)

    def connect(self, endpoint: Endpoint) -> Any:
        self.made.append(Connection(self, endpoint))
        return self.made[-1]

    def publish(self, timeout: float = 15.0) -> Any:
        return self.pool.publish("t", b"PUB t\n", timeout)

    def within(self, publishes: int, act: Callable[[], Any]) -> Any:
        """Call *act* while so many publishes have no answer; return what it returns."""
        answers, outer = self.on_exchange, publishes
        returned: list[Any] = []

        def nest(connection: Connection) -> bytes:
            nonlocal outer
            outer -= 1
            if outer:
                self.publish()
            else:
                self.on_exchange = answers
                returned.append(act())
            return b"OK"

        self.on_exchange = nest
        self.publish()
        return returned[0]


def refuse(connection: Connection) -> None:
    raise errors.ConnectError(connection.endpoint.host, "refused")


@pytest.fixture
def one() -> Bench:
    return Bench(NODES[0])


def test_a_connection_is_opened_only_when_none_is_idle_and_the_last_one_returned_is_used_first(one: Bench) -> None:
    one.within(3, lambda: None)
    assert len(one.made) == 3
    last = one.pool.connections()
    one.publish()
    assert len(one.made) == 3
    assert len(last) == 3
    assert one.pool.published() == 4


@pytest.mark.rule("PUB-4")
def test_above_max_connections_the_loop_has_to_publish(one: Bench) -> None:
    left = one.within(3, one.publish)
    assert isinstance(left, Left)
    assert (left.retries, left.in_doubt, len(one.made)) == (0, False, 3)
    assert one.publish() is None  # and afterwards the pool can again


def test_a_connection_that_was_idle_for_too_long_is_closed_when_another_one_returns(one: Bench) -> None:
    one.within(2, lambda: None)
    one.clock.advance(IDLE / 2)
    one.publish()
    one.clock.advance(IDLE / 2 + 1)
    one.publish()
    assert sorted(each.is_closed for each in one.made) == [False, True]
    assert len(one.pool.connections()) == 1


@pytest.mark.rule("PUB-3")
def test_an_ended_connection_is_replaced_at_checkout_with_all_idle_ones_that_have_ended(one: Bench) -> None:
    one.within(3, lambda: None)
    for connection in one.made[:2]:  # the first is the one that was returned last
        connection.quiet = False
    one.publish()
    assert [each.is_closed for each in one.made] == [True, True, False]
    assert (one.pool.reconnects, one.pool.unknown, one.pool.failed) == (1, 0, 0)


@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize(
    ("is_sent", "retries", "outcome"), [(True, 0, None), (True, 1, Left(0, in_doubt=True)), (False, 1, Left(1))]
)
def test_a_publish_of_a_lost_connection_goes_to_the_loop_if_it_may_be_sent_again(
    is_sent: bool, retries: int, outcome: Left | None
) -> None:
    bench = Bench(NODES[0], retries=retries)

    def lose(connection: Connection) -> bytes:
        connection.is_sent = is_sent
        raise errors.ConnectionLost("a", "gone")

    bench.on_exchange = lose
    if outcome is None:
        with pytest.raises(errors.OutcomeUnknown, match="outcome is unknown"):
            bench.publish()
    else:
        assert bench.publish() == outcome
    assert (bench.made[0].is_closed, bench.pool.unknown) == (True, int(outcome is None))
    bench.on_exchange = lambda connection: b"OK"
    assert bench.publish() is None


@pytest.mark.rule("PUB-4")
def test_a_failed_node_rests_and_is_then_tried_by_one_publish(one: Bench) -> None:
    one.on_open = refuse
    assert isinstance(one.publish(), Left)
    one.clock.advance(REST - 0.1)
    assert isinstance(one.publish(), Left)
    assert len(one.opened) == 1
    one.clock.advance(0.2)
    others: list[Any] = []
    one.on_open = lambda connection: others.append(one.publish())
    assert one.publish() is None
    assert [type(each) for each in others] == [Left]
    assert len(one.opened) == 2


@pytest.mark.rule("PUB-4")
def test_an_attempt_that_takes_until_the_deadline_gives_its_error(one: Bench) -> None:
    def be_too_slow(connection: Connection) -> None:
        one.clock.advance(one.opened[-1][1])
        raise errors.HandshakeTimeout("a", "too slow")

    one.on_open = be_too_slow
    with pytest.raises(errors.NotSent, match="too slow"):
        one.publish(timeout=3.0)


@pytest.mark.rule("PUB-4")
def test_of_several_nodes_a_failed_one_is_skipped_and_its_new_attempts_are_short() -> None:
    bench = Bench(*NODES)
    bench.on_open = lambda connection: refuse(connection) if connection.endpoint.host == "a" else None
    for _ in range(2):
        assert [type(bench.publish()) for _ in range(6)].count(Left) == 1
        bench.clock.advance(REST + 0.1)
    assert bench.sent == ["b"] * 10
    assert [seconds for host, seconds in bench.opened if host == "a"] == [SILENT_AFTER] * 2
    bench.on_open = lambda connection: None
    for _ in range(6):
        bench.publish()
    assert bench.sent[10:].count("a") == 3


@pytest.mark.rule("PUB-4")
def test_a_node_with_an_old_unanswered_publish_gets_nothing_while_another_one_answers() -> None:
    bench = Bench(*NODES)
    bench.publish(), bench.publish()

    def publish_later() -> list[str]:
        bench.clock.advance(SILENT_AFTER + 0.2)
        silent = bench.sent[-1]
        for _ in range(6):
            bench.publish()
        return [host for host in bench.sent[-6:] if host == silent]

    assert bench.within(1, publish_later) == []
    bench.clock.advance(0.2)
    bench.sent.clear()
    for _ in range(6):
        bench.publish()
    assert {bench.sent.count(host) for host in "ab"} == {3}


@pytest.mark.rule("PUB-2")
def test_what_is_raised_in_an_exchange_closes_that_connection_and_passes_through(one: Bench) -> None:
    one.within(2, lambda: None)

    def interrupt(connection: Connection) -> bytes:
        raise KeyboardInterrupt

    one.on_exchange = interrupt
    with pytest.raises(KeyboardInterrupt):
        one.publish()
    assert sorted(each.is_closed for each in one.made) == [False, True]
    one.on_exchange = lambda connection: b"OK"
    assert isinstance(one.within(3, one.publish), Left)  # all three places are free again


def test_a_closed_pool_refuses_publishes_and_closes_what_comes_back(one: Bench) -> None:
    one.within(2, lambda: one.pool.close(0.0))
    assert all(each.is_closed for each in one.made)
    assert one.pool.connections() == []
    with pytest.raises(errors.ClosedError):
        one.publish()
