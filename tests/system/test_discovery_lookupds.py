"""nsqlookupds that list each other: which of them are queried, and how many at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsq_lite.errors import HTTPConnectError, HTTPStatusError
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.system.lookupd_stubs import A, B, C, Cluster, Found, listed, poll, producers

# -- nsqlookupds that name each other ---------------------------------------------------------------------------------


class Listing(Cluster):
    """Each nsqlookupd answers /listlookup with ``lists[address]`` and the rest as in Cluster."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(*addresses)
        self.lists: dict[str, Any] = {}

    def fetch(self, address: str, path: str) -> Any:
        if path != "/listlookup":
            return super().fetch(address, path)
        self.asked.append((address, path))
        said = self.lists.get(address)
        if isinstance(said, Exception):
            raise said
        return said


ONE, TWO, THREE = "10.0.1.1:4161", "10.0.1.2:4161", "10.0.1.3:4161"


def asked_for(cluster: Cluster, what: str) -> list[str]:
    return [address for address, path in cluster.asked if path.startswith(what)]


@pytest.mark.rule("YZ-1")
def test_one_configured_nsqlookupd_names_the_others_and_they_are_asked_at_once(
    found: Found, running: Callable[[Discovery], Discovery]
) -> None:
    cluster = Listing(ONE, TWO, THREE)
    cluster.says.update({ONE: producers(A), TWO: producers(B), THREE: producers(C)})
    cluster.lists[ONE] = cluster.lists[TWO] = listed(ONE, TWO, THREE)
    options = {"fetch": cluster.fetch, "dialect": YouzanDialect(), "lookupd_poll_interval": 3600.0}
    discovery = running(found.discovery([f"http://{ONE}"], **options))
    cluster.says[f"http://{ONE}"], cluster.lists[f"http://{ONE}"] = cluster.says[ONE], cluster.lists[ONE]
    wait_for(lambda: {A, B, C} == set(found.endpoints), sleep=gevent.sleep)
    assert ONE not in discovery.health()
    assert asked_for(cluster, "/listlookup") == [f"http://{ONE}"]


@pytest.mark.rule("YZ-1")
def test_while_all_fail_all_are_queried_and_the_configured_ones_stay(found: Found) -> None:
    clock = FakeClock()
    cluster = Listing(ONE, TWO)
    cluster.says.update({ONE: HTTPConnectError(ONE, "refused"), TWO: HTTPConnectError(TWO, "refused")})
    discovery = found.discovery([ONE, TWO], fetch=cluster.fetch, dialect=YouzanDialect(), clock=clock)
    for count in (1, 2):
        poll(discovery)
        gevent.sleep(0.01)
        clock.advance(1.0)
        assert sorted(asked_for(cluster, "/lookup")) == [ONE] * count + [TWO] * count
    assert set(discovery.health()) == {ONE, TWO}


@pytest.mark.rule("YZ-1")
def test_a_nsqlookupd_that_is_named_no_more_is_still_queried(found: Found) -> None:
    clock = FakeClock()
    cluster = Listing(ONE, TWO)
    cluster.says.update({ONE: producers(A), TWO: producers(B)})
    cluster.lists[ONE] = listed(ONE, TWO)
    discovery = found.discovery([ONE], fetch=cluster.fetch, dialect=YouzanDialect(), clock=clock)
    for answer in (listed(ONE, TWO), listed(ONE), None):
        cluster.lists[ONE] = cluster.lists[TWO] = answer
        cluster.says[TWO] = producers(B) if answer else HTTPConnectError(TWO, "refused")
        poll(discovery)
        gevent.sleep(0.01)
        clock.advance(100.0)
    assert set(discovery.health()) == {ONE, TWO}


def test_a_nsqlookupd_without_listlookup_is_not_thought_worse_of(found: Found) -> None:
    clock = FakeClock()
    cluster = Listing(ONE)
    cluster.says[ONE] = producers(A)
    cluster.lists[ONE] = HTTPStatusError(ONE, 404, "NOT_FOUND")
    discovery = found.discovery([ONE], fetch=cluster.fetch, dialect=YouzanDialect(), clock=clock)
    for _ in range(3):
        poll(discovery)
        gevent.sleep(0.01)
        clock.advance(1.0)
    assert asked_for(cluster, "/listlookup") == [ONE]
    assert asked_for(cluster, "/lookup") == [ONE] * 3
    assert discovery.health()[ONE].ok is True


def test_where_an_address_is_https_no_other_is_asked_for(found: Found) -> None:
    secure = f"https://{ONE}"
    cluster = Listing(secure)
    cluster.lists[secure] = listed(TWO)
    discovery = found.discovery([secure], fetch=cluster.fetch, dialect=YouzanDialect())
    poll(discovery)
    gevent.sleep(0.01)
    assert asked_for(cluster, "/listlookup") == []
    assert list(discovery.health()) == [secure]


@pytest.mark.rule("DISC-6")
@pytest.mark.rule("YZ-1")
def test_of_nsqlookupds_that_are_named_without_end_a_hundred_are_asked_and_remembered(found: Found) -> None:
    clock = FakeClock()
    cluster = Listing(ONE)
    discovery = found.discovery([ONE], fetch=cluster.fetch, dialect=YouzanDialect(), clock=clock)
    for turn in range(5):
        named = [f"10.1.{turn}.{number}:4161" for number in range(90)]
        cluster.says.update({address: producers() for address in named})
        cluster.lists.update(dict.fromkeys(cluster.says, listed(ONE, *named)))
        poll(discovery)
        gevent.sleep(0.01)
        clock.advance(100.0)
    poll(discovery)
    assert len(discovery.health()) == 100
    assert len({address for address, _ in cluster.asked}) == 100
