"""One of two servers is not running: each command uses the other one, and names the missing one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.http import NsqdClient
from tests.cli.programs import run_here

#: Nothing listens here.
GONE = "127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Start an nsqd and an nsqlookupd, with a topic "t" and its channel "c"."""
    with Broker() as running, NsqdClient(running.node.http_address) as nsqd:
        nsqd.create_topic("t")
        nsqd.create_channel("t", "c")
        yield running


@pytest.fixture
def nsqds(broker: Broker) -> tuple[str, ...]:
    """Flags for two nsqds, the second of which is gone."""
    return "--nsqd-tcp-address", broker.nsqd_tcp_address, "--nsqd-tcp-address", GONE


@pytest.fixture
def lookupds(broker: Broker) -> tuple[str, ...]:
    """Flags for two nsqlookupds, the second of which is gone."""
    return "--lookupd-http-address", broker.lookupd_http_address or "", "--lookupd-http-address", GONE


def test_pub_to_each_nsqd_fails_and_names_the_one_that_is_gone(nsqds: tuple[str, ...]) -> None:
    done = run_here("pub", "--topic", "t", "--timeout", "1", *nsqds, stdin=b"a\nb\n")
    assert done.returncode == 1
    assert GONE.encode() in done.stderr
    assert b"0 messages were published to each nsqd, and 1 more to 1 of them" in done.stderr


def test_pub_to_any_nsqd_publishes_every_line(broker: Broker, nsqds: tuple[str, ...]) -> None:
    done = run_here("pub", "--topic", "t", "--any-nsqd", *nsqds, stdin=b"a\nb\n")
    assert (done.returncode, done.stderr) == (0, b"2 messages published\n")
    assert [topic["message_count"] for topic in broker.node.stats()["topics"]] == [2]


def test_tail_prints_the_messages_of_the_other_nsqd(broker: Broker, nsqds: tuple[str, ...]) -> None:
    assert run_here("pub", "--topic", "t", *nsqds[:2], stdin=b"a\nb\n").returncode == 0
    done = run_here("tail", "--topic", "t", "--channel", "c", "-n", "2", *nsqds)
    assert (done.returncode, sorted(done.stdout.split())) == (0, [b"a", b"b"])
    assert f"{GONE}: cannot connect".encode() in done.stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("topics",), b"t\n"),
        (("channels", "t"), b"c\n"),
        (("nodes",), b"127.0.0.1"),
        (("stat", "--count", "1"), b"t\tc\t0\t"),
        (("pub", "--topic", "t"), b""),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_one_nsqlookupd_lists_is_enough(lookupds: tuple[str, ...], words: tuple[str, ...], printed: bytes) -> None:
    done = run_here(*words, *lookupds, stdin=b"x\n")
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_stat_prints_the_figures_of_the_other_nsqd(broker: Broker) -> None:
    where = ("--nsqd-http-address", broker.node.http_address, "--nsqd-http-address", GONE)
    done = run_here("stat", "--count", "1", *where)
    assert done.returncode == 0
    assert b"t\tc\t0\t" in done.stdout
    assert GONE.encode() in done.stderr


@pytest.mark.parametrize(
    "words",
    ["topic pause t", "topic delete t", "channel pause t c", "channel delete t c"],
)
def test_a_change_runs_on_the_other_server_and_the_missing_one_is_named(
    broker: Broker, lookupds: tuple[str, ...], words: str
) -> None:
    done = run_here(*words.split(), "--yes", *lookupds)
    assert GONE.encode() in done.stderr
    topics = broker.node.stats()["topics"]
    left = [(t["paused"], [(c["channel_name"], c["paused"]) for c in t["channels"]]) for t in topics]
    expected = {
        "topic pause": [(True, [("c", False)])],
        "topic delete": [],
        "channel pause": [(False, [("c", True)])],
        "channel delete": [(False, [])],
    }
    assert left == expected[" ".join(words.split()[:2])]
    assert done.returncode == int("delete" in words)  # the list of topics is kept by nsqlookupd too


# -- the limit and one more


@pytest.mark.parametrize(("more", "code"), [(0, 0), (1, 1)])
def test_pub_sends_a_line_of_max_msg_size_and_refuses_one_more_byte(broker: Broker, more: int, code: int) -> None:
    done = run_here(
        "pub", "--topic", "t", *("--nsqd-tcp-address", broker.nsqd_tcp_address), stdin=bytes([120]) * (2**20 + more)
    )
    assert done.returncode == code, done.stderr
    assert (b"at most 1048576" in done.stderr) == bool(more)
    assert [topic["message_count"] for topic in broker.node.stats()["topics"]] == [1 - more]


@pytest.mark.parametrize("count", [1000, 1001])
def test_pub_publishes_a_batch_of_lines_and_one_more(broker: Broker, count: int) -> None:
    done = run_here(
        *("pub", "--topic", "t", "--batch", "1000", "--nsqd-tcp-address", broker.nsqd_tcp_address),
        stdin=b"".join(b"%d\n" % number for number in range(count)),
    )
    assert (done.returncode, done.stderr) == (0, f"{count} messages published\n".encode())
    assert [topic["message_count"] for topic in broker.node.stats()["topics"]] == [count]


@pytest.mark.parametrize("nsqds", ["64", "65"])
def test_the_broker_takes_64_nsqds_at_most(nsqds: str) -> None:
    done = run_here("broker", "--nsqds", nsqds, "--tcp-address", "no port")
    assert done.returncode == 2
    assert (b"65 is not in the range" in done.stderr) == (nsqds == "65")


def test_dead_retry_publishes_one_letter_more_than_nsqd_allows_in_flight(broker: Broker) -> None:
    count = 2501  # nsqd's --max-rdy-count is 2,500
    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.multipublish("letters", [b"%d" % number for number in range(count)])
    done = run_here(*("dead", "retry", "bodies:letters", "--to", "t", "--nsqd-tcp-address", broker.nsqd_tcp_address))
    assert done.returncode == 0, done.stderr
    counted = {t["topic_name"]: t for t in broker.node.stats()["topics"]}
    assert counted["t"]["message_count"] == count
    assert [channel["depth"] for channel in counted["letters"]["channels"]] == [0]
