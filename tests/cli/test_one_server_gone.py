"""One of two servers is not running: each command uses the other one, and names the missing one."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.cli import demo
from gnsq_lite.contrib.outbox import Outbox
from gnsq_lite.http import NsqdClient
from tests.cli.programs import command, environment, run_here
from tests.programs import running

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
    *warnings, last = done.stderr.splitlines()
    assert (done.returncode, last) == (0, b"2 messages published")
    assert all(GONE.encode() in warning for warning in warnings)  # if the Writer tried the missing nsqd first
    assert [topic["message_count"] for topic in broker.node.stats()["topics"]] == [2]


def test_tail_prints_the_messages_of_the_other_nsqd(broker: Broker, nsqds: tuple[str, ...]) -> None:
    assert run_here("pub", "--topic", "t", *nsqds[:2], stdin=b"a\nb\n").returncode == 0
    handlers = logging.getLogger().handlers[:]
    done = run_here("tail", "--topic", "t", "--channel", "c", "-n", "2", *nsqds)
    assert logging.getLogger().handlers == handlers  # none that writes the records of later tests to a closed stream
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
    assert GONE.encode() in done.stderr


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


SHOP = """
import sqlite3
from gnsq_lite import Worker
from gnsq_lite.contrib.outbox import Outbox

outbox, worker = Outbox(lambda: sqlite3.connect("shop.sqlite3")), Worker()

@worker.handler("t", "c")
def handle(message):
    print("handled", message.body.decode(), flush=True)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with an outbox and a worker, for commands that run in its directory; return its name."""
    name = "shop_" + tmp_path.name.rpartition("_")[2].rpartition("-")[2]  # a name that no other test has imported
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def depths(broker: Broker) -> list[int]:
    """Return the depths of the channels of topic "t"."""
    (topic,) = (each for each in broker.node.stats()["topics"] if each["topic_name"] == "t")
    return [channel["depth"] for channel in topic["channels"]]


@pytest.mark.parametrize(("kind", "code"), [("nsqds", 1), ("lookupds", 0)])
def test_record_reads_the_other_nsqd_to_its_end_and_fails_if_one_is_gone(
    broker: Broker, tmp_path: Path, request: pytest.FixtureRequest, kind: str, code: int
) -> None:
    pytest.importorskip("pyarrow")
    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.multipublish("t", [b"%d" % number for number in range(10)])
    place, where = str(tmp_path / "recording"), request.getfixturevalue(kind)
    done = run_here("record", "t", "c", place, *where, "--until-empty", "--connect-timeout", "1s")
    assert done.returncode == code, done.stderr
    assert GONE.encode() in done.stderr  # what an nsqlookupd lists is enough, and a backlog may be in an nsqd
    assert b"onMissingNsqd" not in done.stderr  # an option of Spark
    assert depths(broker) == [0]
    assert b"rows 1 to 10" in run_here("recording", "ls", place).stdout


@pytest.mark.parametrize("kind", ["nsqds", "lookupds"])
def test_the_relay_of_an_outbox_publishes_every_row_to_the_other_server(
    broker: Broker, shop: str, request: pytest.FixtureRequest, kind: str
) -> None:
    outbox = Outbox(lambda: sqlite3.connect("shop.sqlite3"))
    outbox.create_tables()
    with closing(sqlite3.connect("shop.sqlite3")) as connection:
        for _ in range(101):  # a batch of the relay has 100 rows
            outbox.publish(connection, "t", b"x")
        connection.commit()
        done = run_here("outbox", "relay", shop, "--once", *request.getfixturevalue(kind))
        assert done.returncode == 0, done.stderr
        assert connection.execute("SELECT count(*) FROM nsq_outbox").fetchone() == (0,)
    assert depths(broker) == [101]


@pytest.mark.parametrize("kind", ["nsqds", "lookupds"])
def test_the_worker_handles_the_messages_of_the_other_server_and_names_the_missing_one(
    broker: Broker, tmp_path: Path, shop: str, request: pytest.FixtureRequest, kind: str
) -> None:
    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.publish("t", b"from the other")
    with running(command("worker", shop, *request.getfixturevalue(kind))[1:], tmp_path, env=environment()) as program:
        program.says("handled from the other")
        program.says(GONE)


def test_the_demo_names_an_nsqlookupd_that_is_gone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = demo.wait_for_all
    monkeypatch.setattr(demo, "wait_for_all", lambda *args, timeout: wait(*args, timeout=2.0))
    done = run_here("demo", "-", "--nsqd", broker.nsqd_tcp_address, "--lookupd", GONE, stdin=b"a\nb\n")
    assert done.returncode == 1
    assert f"nsqlookupd {GONE} fails".encode() in done.stderr


@pytest.mark.parametrize("act", ["list", "retry"])
def test_letters_of_the_nsqds_that_one_nsqlookupd_lists_are_found(
    broker: Broker, lookupds: tuple[str, ...], act: str
) -> None:
    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.publish("letters", b"a letter")
    done = run_here("dead", act, "bodies:letters", *(("--to", "t") if act == "retry" else ()), *lookupds)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count(b"\n"), depths(broker)) == ((2, [0]) if act == "list" else (1, [1])), done.stdout
    assert f"nsqlookupd {GONE} fails".encode() in done.stderr


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


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    ("words", "flag", "most"),
    [
        ("worker shop --log-format none", "--processes", 1024),
        ("worker shop --log-format none", "--metrics-port", 65_535),
        ("record t c recording --retain none", "--connections-per-nsqd", 64),
        ("outbox relay shop --compression none", "--interval", 3600),
    ],
)
def test_a_flag_takes_its_highest_value_and_refuses_one_more(words: str, flag: str, most: int, more: int) -> None:
    command, *wrong = words.partition(" --")  # another wrong value, which is read later: nothing starts
    done = run_here(*command.split(), flag, str(most + more), *"".join(wrong).split())
    assert done.returncode == 2
    assert (f"Invalid value for '{flag}'".encode() in done.stderr) == bool(more), done.stderr


@pytest.mark.parametrize("limit", [200, 201])
def test_the_demo_publishes_a_batch_and_one_more_and_none_beyond_its_limit(limit: int) -> None:
    done = run_here("demo", "-", "--limit", str(limit), stdin=b"".join(b"%d\n" % number for number in range(300)))
    assert done.returncode == 0, done.stderr
    assert f"lines handled:   {limit}\n".encode() in done.stdout


def test_record_stores_one_message_more_than_may_be_in_flight(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    count = 2501  # --max-in-flight of a connection, and nsqd's --max-rdy-count, are 2,500
    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.multipublish("t", [b"%d" % number for number in range(count)])
    place, where = str(tmp_path / "recording"), ("--nsqd-tcp-address", broker.nsqd_tcp_address)
    done = run_here("record", "t", "c", place, *where, "--until-empty")
    assert done.returncode == 0, done.stderr
    assert b"rows 1 to 2501" in run_here("recording", "ls", place).stdout
    assert depths(broker) == [0]
