"""Discovery: all nsqlookupds side by side, answers acted upon as they come, failures noted and survived."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import HTTPConnectError, HTTPResponseError, HTTPStatusError
from gnsq_lite.net.discovery import Discovery
from tests.fakes import FakeClock
from tests.programs import wait_for
from tests.system.lookupd_stubs import A, B, C, Cluster, Found, poll, producers

# -- nsqds that are found ---------------------------------------------------------------------------------------------


@pytest.mark.rule("DISC-1")
@pytest.mark.rule("DISC-2")
def test_every_nsqlookupd_is_asked_on_every_poll_and_the_answers_are_united(found: Found) -> None:
    cluster = Cluster("one", "two", "three")
    cluster.says.update(one=producers(A, B), two=producers(B, C), three=HTTPConnectError("three", "refused"))
    discovery = found.discovery(cluster.says, topic="a#ephemeral", fetch=cluster.fetch)
    poll(discovery)
    assert sorted(cluster.asked) == [(name, "/lookup?topic=a%23ephemeral") for name in ("one", "three", "two")]
    assert sorted(found.take(), key=str) == [A, B, C]
    assert sorted(discovery.endpoints, key=str) == [A, B, C]
    poll(discovery)
    assert len(cluster.asked) == 6


@pytest.mark.rule("DISC-6")
def test_failures_leave_what_was_known_and_the_nsqds_connected(found: Found) -> None:
    cluster = Cluster("one", "two")
    cluster.says.update(one=producers(A), two=producers(B))
    discovery = found.discovery(cluster.says, fetch=cluster.fetch)
    poll(discovery)
    cluster.says.update(one=HTTPStatusError("one", 500, "oops"), two=HTTPResponseError("two", "not JSON"))
    poll(discovery)
    assert sorted(discovery.endpoints, key=str) == [A, B]
    assert found.forgotten == []
    assert sorted(address for address, _ in found.lookups) == ["one", "two"]


def test_when_all_fail_the_last_known_nsqds_are_tried_again(found: Found) -> None:
    cluster = Cluster("one", "two")
    cluster.says["one"] = producers(A)
    discovery = found.discovery(["one", "two"], fetch=cluster.fetch)
    cluster.says["two"] = producers()
    poll(discovery)
    assert found.take() == [A]
    discovery.disconnected(A)
    cluster.says["one"] = HTTPConnectError("one", "refused")
    poll(discovery)
    assert found.take() == []  # the other nsqlookupd may still list it
    cluster.says["two"] = HTTPConnectError("two", "refused")
    poll(discovery)
    poll(discovery)
    assert found.take() == [A]


@pytest.mark.rule("DISC-5")
@pytest.mark.parametrize(
    "unknown",
    [
        HTTPStatusError("x", 404, "TOPIC_NOT_FOUND"),
        HTTPStatusError("x", 500, "TOPIC_NOT_FOUND"),
        HTTPStatusError("x", 404, "Key not found"),
        HTTPStatusError("x", 404, "Topic has no channel, should init at least one for the new topic"),
    ],
    ids=str,
)
def test_an_unknown_topic_is_an_empty_answer_and_is_asked_for_again(
    found: Found, unknown: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster("one")
    cluster.says["one"] = unknown
    discovery = found.discovery(["one"], fetch=cluster.fetch)
    for _ in range(3):
        poll(discovery)
    assert discovery.health()["one"].ok is True
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    cluster.says["one"] = producers(A)
    poll(discovery)
    assert found.take() == [A]


def test_the_404_of_a_server_that_is_no_nsqlookupd_is_a_failure(found: Found) -> None:
    cluster = Cluster("one")
    cluster.says["one"] = HTTPStatusError("one", 404, "NOT_FOUND")
    discovery = found.discovery(["one"], fetch=cluster.fetch)
    poll(discovery)
    assert discovery.health()["one"].ok is False


# -- logs and error messages ------------------------------------------------------------------------------------------


@pytest.mark.rule("DISC-6")
def test_one_line_is_logged_for_each_change_of_state(found: Found, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster("one")
    clock = FakeClock()
    discovery = found.discovery(["one"], fetch=cluster.fetch, clock=clock)
    bad = [
        HTTPConnectError("http://one/lookup", "no connection"),
        HTTPStatusError("http://one/lookup", 500, "oops"),
        producers(A) | {"producers": [{"broadcast_address": "evil\x1b[2J\nhost", "tcp_port": 4150}]},
        {"channels": []},
        KeyError("a parser's own mistake"),
    ]
    for said in [producers(), producers(), *bad, producers(), producers(A)]:
        cluster.says["one"] = said
        poll(discovery)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "nsqlookupd one answers"),
        (
            "WARNING",
            "nsqlookupd one fails: http://one/lookup: no connection; its last good answer, if any, stays valid",
        ),
        ("INFO", "nsqlookupd one answers again, after 5 failures"),
    ]
    assert found.take() == [A]


def test_health_says_how_each_nsqlookupd_does(found: Found) -> None:
    cluster = Cluster("one", "two")
    cluster.says.update(one=producers(A), two=HTTPConnectError("two", "refused"))
    discovery = found.discovery(["one", "two"], fetch=cluster.fetch)
    assert discovery.health()["one"].ok is None
    poll(discovery)
    poll(discovery)
    health = discovery.health()
    assert (health["one"].ok, health["one"].error, health["one"].last_nodes) == (True, None, (A,))
    assert (health["two"].ok, health["two"].error, health["two"].failures_in_a_row) == (False, "two: refused", 2)


# -- bounds and filters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10_000, 10_001])
def test_an_answer_with_too_many_producers_is_refused_whole(found: Found, count: int) -> None:
    cluster = Cluster("one")
    cluster.says["one"] = producers(*(Endpoint(f"h{n}", 4150) for n in range(count)))
    discovery = found.discovery(["one"], fetch=cluster.fetch)
    poll(discovery)
    assert len(found.take()) == (count if count <= 10_000 else 0)
    error = discovery.health()["one"].error
    assert error == (
        None if count <= 10_000 else "one: the answer has 10001 entries in 'producers'; at most 10000 are accepted"
    )


@pytest.mark.rule("DISC-6")
def test_a_logging_filter_that_raises_does_not_end_a_query(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError("an error of the program's filter")

    monkeypatch.setattr(logging.getLogger("gnsq_lite.discovery"), "filters", [refuse])
    cluster = Cluster("one")
    cluster.says["one"] = {"producers": [None, *producers(A)["producers"]]}
    poll(found.discovery(["one"], fetch=cluster.fetch))
    assert found.take() == [A]


@pytest.mark.rule("DISC-6")
def test_a_producer_of_no_use_hides_no_other_and_is_told_of_once(
    found: Found, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("one", "two")
    useless = [{"broadcast_address": "x\x1b[2J", "tcp_port": 70000}, {"broadcast_address": "y"}, None]
    useless += [{"broadcast_address": "..", "tcp_port": 4150}]  # gevent's resolver would print a traceback for it
    listing = {"producers": [useless[0], *producers(A)["producers"], *useless[1:], *producers(B)["producers"]]}
    cluster.says.update(one=listing, two=listing)
    discovery = found.discovery(["one", "two"], fetch=cluster.fetch)
    poll(discovery)
    poll(discovery)
    assert found.take() == [A, B]
    assert discovery.health()["one"].ok is True
    assert [record.getMessage() for record in caplog.records] == [
        f"an nsqlookupd lists a producer without a usable address: {shown}, which is ignored"
        for shown in (r"'x\x1b[2J', port 70000", "'y', port None", "None", "'..', port 4150")
    ]


def test_an_nsqd_that_is_given_directly_is_not_found_again_under_its_own_or_a_mapped_name(found: Found) -> None:
    cluster = Cluster("one")
    cluster.says["one"] = producers(A, Endpoint("container-7", 4150), B)
    discovery = found.discovery(
        ["one"], fetch=cluster.fetch, direct=[A], address_map={"container-7": "10.0.0.1", "10.0.0.2": "proxy:1"}
    )
    poll(discovery)
    assert found.take() == [B]


# -- side by side -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("DISC-1")
def test_a_nsqlookupd_that_never_answers_delays_nobody_and_is_not_asked_twice_at_once(found: Found) -> None:
    never = Event()
    cluster = Cluster("dead", "one")
    cluster.says.update(dead=never.wait, one=producers(A))
    discovery = found.discovery(cluster.says, fetch=cluster.fetch)
    poll(discovery)
    assert found.take() == [A]
    discovery.disconnected(A)
    poll(discovery)
    assert found.take() == [A]
    assert [address for address, _ in cluster.asked].count("dead") == 1
    discovery.stop()
    never.set()  # a query that runs is not killed


def test_poke_polls_now_and_stop_ends_everything(found: Found, running: Callable[[Discovery], Discovery]) -> None:
    cluster = Cluster("one")
    discovery = running(found.discovery(["one"], fetch=cluster.fetch, lookupd_poll_interval=3600.0))
    wait_for(lambda: len(cluster.asked) == 1, sleep=gevent.sleep)
    discovery.poke()
    wait_for(lambda: len(cluster.asked) == 2, sleep=gevent.sleep)
    discovery.stop()
    cluster.says["one"] = producers(A)
    discovery.poke()
    gevent.sleep(0.05)
    assert found.take() == []
