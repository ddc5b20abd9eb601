"""What people see: on a terminal of 80 columns, with wrong input, when they stop something, in their shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.cli.completion import channel_names, topic_names
from tests.cli.programs import call, environment, started
from tests.cli.programs import run as program
from tests.cli.terminals import Terminal
from tests.programs import STARTING, wait_for

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def terminal() -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: str, **size: int) -> Terminal:
        opened.append(Terminal(*arguments, **size))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def fill(broker: Broker, topic: str, count: int, *channels: str) -> tuple[str, str]:
    from gnsq_lite.http import NsqdClient

    with NsqdClient(broker.node.http_address) as nsqd:
        nsqd.create_topic(topic)
        for channel in channels:
            nsqd.create_channel(topic, channel)
        if count:
            nsqd.multipublish(topic, [b"x"] * count)
    return "--lookupd-http-address", broker.lookupd_http_address


def test_stat_fits_80_columns_and_leaves_one_header_after_ctrl_c(broker: Broker, terminal: Any) -> None:
    for number in range(3):
        on = fill(broker, f"a_topic_of_some_length_{number}", 20_000, "archive", "a-channel-of-more-length")
    running = terminal("stat", "--interval=100ms", *on)
    wait_for(lambda: running.raw.count(b"depth") >= 3 or running.read(), STARTING, "three samples")
    assert running.shows("topic")
    running.type(b"\x03")
    assert running.end() == 0
    screen = running.screen()
    assert sum("topic " in line and "depth" in line for line in screen) == 1, screen
    assert sum("20,000" in line for line in screen) == 6
    assert max(map(len, screen)) <= 80
    assert any("messages are queued" in line for line in screen)
    assert any("no room for" in line for line in screen)


def test_stat_that_is_higher_than_the_terminal_does_not_scroll(broker: Broker, terminal: Any) -> None:
    for number in range(30):
        on = fill(broker, f"t{number}", 0, "c")
    running = terminal("stat", "--interval=100ms", *on, height=10)
    wait_for(lambda: running.raw.count(b"depth") >= 3 or running.read(), STARTING, "three samples")
    running.type(b"\x03")
    assert running.end() == 0
    screen = running.screen()
    assert sum("depth" in line and "channel " in line for line in screen) == 1
    assert b" channels with a smaller depth" in running.raw, screen


def test_control_characters_of_a_body_never_reach_a_terminal(broker: Broker, terminal: Any) -> None:
    on = ("--nsqd-tcp-address", broker.nsqd_tcp_address)
    fill(broker, "t", 0, "c", "d")
    body = b"\x1b]0;owned\x07\x1b[2J\x9b31m \xc2\x9b \xff \xe2\x80\xae ok"
    assert program("pub", "--topic", "t", *on, stdin=body + b"\n").returncode == 0
    running = terminal("tail", "--topic", "t", "--channel", "c", "-n", "1", *on)
    assert running.end() == 0
    assert not set(running.raw) & {*range(9), 11, 12, *range(14, 32), 127}
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m \\x9b \\xff \\u202e ok" in running.raw.decode()
    piped = program("tail", "--topic", "t", "--channel", "d", "-n", "1", *on)
    assert piped.stdout == body + b"\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_pub_prints_the_numbers_of_sent_and_confirmed_lines(number: int, code: int, broker: Broker) -> None:
    with started("pub", "--topic", "t", "--nsqd-tcp-address", broker.nsqd_tcp_address) as running:
        running.write(b"1\n2\n3\n")
        wait_for(lambda: [t["message_count"] for t in broker.node.stats()["topics"]] == [3], STARTING, "three messages")
        time.sleep(0.2)  # for its own count
        stopped, _, err = running.stop(number)
    assert stopped == code
    assert err.decode().strip() == f"gnsq-lite pub: {signal.Signals(number).name}: 3 lines sent, 3 confirmed by nsqd"


def test_a_pub_to_a_silent_nsqd_stops_at_once(tmp_path: Path) -> None:
    with started("pub", "--topic", "t", "--nsqd-tcp-address", NOWHERE, "--timeout=1m") as running:
        running.write(b"1\n")
        assert b"cannot connect" in running.read_line(errors=True)
        code, _, err = running.stop(signal.SIGTERM)
    assert code == 143
    assert b"1 lines sent, 0 confirmed" in err


def test_pub_publishes_each_line_to_all_nsqds_or_with_any_nsqd_to_one() -> None:
    with Broker(nsqds=2, lookupd=False) as broker:
        where = [flag for each in broker.nsqd_tcp_addresses for flag in ("--nsqd-tcp-address", each)]
        assert program("pub", "--topic", "all", *where, stdin=b"1\n2\n").returncode == 0
        assert program("pub", "--topic", "any", "--any-nsqd", *where, stdin=b"1\n2\n").returncode == 0
        depths = [{t["topic_name"]: t["depth"] for t in node.stats()["topics"]} for node in broker.nodes]
    assert [each["all"] for each in depths] == [2, 2]
    assert sum(each.get("any", 0) for each in depths) == 2


def test_an_unknown_topic_is_a_failure_and_a_topic_without_channels_is_not(broker: Broker) -> None:
    on = fill(broker, "bare", 0)
    code, out, err = call("channels", "NOPE", *on)
    assert (code, out) == (1, "")
    assert "'NOPE'" in err
    assert call("channels", "bare", *on) == (0, "", "")


def test_topics_of_nodes_are_a_list_in_json_and_a_text_in_the_table(broker: Broker) -> None:
    fill(broker, "a", 0)
    on = fill(broker, "b", 0)
    (node,) = json.loads(call("nodes", "--json", *on)[1])
    assert sorted(node["topics"]) == ["a", "b"]
    assert call("nodes", *on)[1].strip().split("\t")[3] in ("a, b", "b, a")


def test_an_unreachable_server_is_reported_once(broker: Broker) -> None:
    on = fill(broker, "t", 0, "c")
    two = (*on, "--lookupd-http-address", NOWHERE)
    code, _, err = call("stat", "--count", "3", "--interval", "50ms", *two)
    assert (code, err.count(NOWHERE)) == (0, 1)
    code, _, err = call("topics", "--lookupd-http-address", NOWHERE)
    assert (code, err.count("\n")) == (1, 1)


def test_an_error_names_a_flag_of_the_command(broker: Broker) -> None:
    code, _, err = call("pub", "--topic", "t", "--tls", "--tls-root-ca-file", "/nowhere", "--nsqd-tcp-address", NOWHERE)
    assert code == 2
    assert "--tls-root-ca-file" in err
    assert "ca_file" not in err.replace("--tls-root-ca-file", "")


class Context:
    def __init__(self, **params: Any) -> None:
        self.params = params


def test_names_of_topics_and_channels_complete(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, "clicks", 0, "archive", "audit")
    fill(broker, "orders", 0, "billing")
    lookupd: Any = Context(lookupds=(broker.lookupd_http_address,), topics=("clicks",))
    nsqd: Any = Context(nsqd_http=(broker.node.http_address,), topic="clicks")
    param: Any = None
    for context in (lookupd, nsqd):
        assert topic_names(context, param, "") == ["clicks", "orders"]
        assert topic_names(context, param, "cl") == ["clicks"]
        assert channel_names(context, param, "a") == ["archive", "audit"]
    nobody: Any = Context(lookupds=(NOWHERE,))
    assert topic_names(nobody, param, "") == []
    words = f"gnsq-lite tail --lookupd-http-address {broker.lookupd_http_address} --topic "
    env = {"_GNSQ_LITE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    script = "import sys; sys.argv[0] = 'gnsq-lite'; from gnsq_lite.cli.app import run; sys.exit(run())"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(**env), capture_output=True, timeout=30, check=False
    )
    assert done.stdout.decode().split() == ["plain,clicks", "plain,orders"], done.stderr
