"""The command line's tools as a user runs them, against an embedded and a real nsqd."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.cli.app import COMMANDS
from tests.certs import Certificates
from tests.cli.programs import call, run_here, started
from tests.cli.programs import run as program
from tests.conftest import MakeBroker
from tests.contract.authserver import AuthServer
from tests.programs import wait_for
from tests.servers import EmbeddedNsqd, ServerHandle, http_call


@pytest.fixture
def embedded() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def on(broker: ServerHandle | Broker) -> tuple[str, str]:
    address = broker.nsqd_tcp_address if isinstance(broker, Broker) else broker.tcp_address
    return "--nsqd-tcp-address", address


# -- the program


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_it_names_its_flags(name: str) -> None:
    code, out, _ = call(name, "--help")
    assert code == 0
    assert "Usage: gnsq-lite" in out


def test_a_failure_is_exit_code_1_and_one_line() -> None:
    done = program("pub", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1", "--timeout", "0.3", stdin=b"x\n")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") <= 3
    assert b"127.0.0.1:1" in done.stderr
    assert b"(0 messages were published)" in done.stderr


# -- demo and broker


def test_the_demo_proves_that_nothing_was_lost(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(5_500)) + b"\n\nlast without newline")
    done = program("demo", str(source))
    assert done.returncode == 0, done.stderr
    assert b"lines published: 5,503" in done.stdout
    assert b"lines handled:   5,503" in done.stdout
    assert b"retries:         1" in done.stdout
    assert b"nothing was lost" in done.stdout


def test_the_demo_runs_on_a_given_nsqd_with_lines_of_standard_input(broker: ServerHandle) -> None:
    done = run_here("demo", "-", "--nsqd", broker.tcp_address, stdin=b"a\nb\nc\n")
    assert done.returncode == 0, done.stderr
    assert b"lines handled:   3" in done.stdout


def test_the_demo_without_lines_fails() -> None:
    done = run_here("demo", "-")
    assert done.returncode == 1
    assert b"no lines" in done.stderr


def test_the_broker_runs_alone_and_ends_on_a_signal() -> None:
    zero = ("--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
    more = ("--nsqlookupd-http-address", "127.0.0.1:0", "--json")
    for number in (signal.SIGTERM, signal.SIGINT):
        with started("broker", *zero, *more) as running:
            listening = json.loads(running.read_line())
            assert listening["storage"] == "memory"
            assert http_call(listening["nsqd_http"][0], "POST", "/pub?topic=t", b"x").status == 200
            assert call("topics", "--lookupd-http-address", listening["lookupd_http"][0])[:2] == (0, "t\n")
            code, _, err = running.stop(number)
            assert (code, err) == (0, b"")


# -- pub and tail


def test_pub_publishes_lines_and_tail_prints_them(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "c")
    done = run_here("pub", "--topic", topic, *on(broker), stdin=b"one\ntwo\n\nthree")
    assert done.returncode == 0, done.stderr
    assert b"3 messages published" in done.stderr
    done = program("tail", "--topic", topic, "--channel", "c", "-n", "3", *on(broker))
    assert sorted(done.stdout.split(b"\n")) == [b"", b"one", b"three", b"two"]


def test_pub_publishes_files_with_a_delimiter_in_batches(broker: ServerHandle, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1;2;3")
    (tmp_path / "b").write_bytes(b"4;" + b"x" * 100_000)
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    done = run_here("pub", "--topic", topic, "--delimiter", ";", "--batch", "2", *on(broker), *files)
    assert done.returncode == 0, done.stderr
    assert broker.stats(topic)["depth"] == 5


def test_pub_keeps_to_its_rate(broker: ServerHandle, topic: str) -> None:
    began = time.monotonic()
    done = run_here("pub", "--topic", topic, "--rate", "50", *on(broker), stdin=b"x\n" * 51)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began >= 1.0


def test_tail_prints_json_with_metadata(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "c")
    bodies = [b"\xffbinary", b"\\xffbinary", "t\u00e9xt \x1b[2J\x7f".encode()]
    broker.publish(topic, *bodies)
    done = run_here("tail", "--topic", topic, "--channel", "c", "-n", "3", "--json", *on(broker))
    assert not [byte for byte in done.stdout if (byte < 32 and byte != 10) or byte > 126]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    decode = {"utf-8": str.encode, "base64": base64.b64decode}
    assert sorted(decode[record["encoding"]](record["body"]) for record in records) == sorted(bodies)
    assert {(record["topic"], record["attempts"]) for record in records} == {(topic, 1)}


def test_progress_has_a_rate_and_the_time_left_if_the_size_is_known(tmp_path: Path) -> None:
    with Broker(lookupd=False) as broker:
        source = tmp_path / "lines"
        source.write_bytes(b"x\n" * 90)
        done = run_here("pub", "--topic", "t", "--rate", "30", *on(broker), str(source))
        assert done.returncode == 0, done.stderr
        assert b"/s)" in done.stderr
        assert b" s left" in done.stderr
        done = run_here("pub", "--topic", "t", "--rate", "30", *on(broker), stdin=b"x\n" * 90)
        assert b" s left" not in done.stderr


def test_the_broker_takes_nsqds_flags_for_tls_and_auth(certs: Certificates) -> None:
    zero = ("--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--no-lookupd", "--json")
    tls = ("--tls-cert", certs.server.cert, "--tls-key", certs.server.key, "--tls-required", "true")
    with AuthServer() as auth_server:
        auth_server.allow("hunter2")
        with started("broker", *zero, *tls, "--auth-http-address", auth_server.address) as running:
            address = json.loads(running.read_line())["nsqd_tcp"][0]
            flags = ("pub", "--topic", "t", "--nsqd-tcp-address", address, "--timeout", "3")
            done = run_here(*flags, "--tls-root-ca-file", certs.ca, stdin=b"x\n", NSQ_AUTH_SECRET="hunter2")
            assert done.returncode == 0, done.stderr
            done = run_here(*flags, "--tls-root-ca-file", certs.ca, stdin=b"x\n")
            assert done.returncode == 1
            assert b"--auth-secret" in done.stderr
            done = run_here(*flags, stdin=b"x\n", NSQ_AUTH_SECRET="hunter2")
            assert done.returncode == 1
            assert b"hunter2" not in done.stderr


# -- stat and the lists


def test_stat_prints_json_and_a_table(embedded: Broker, topic: str) -> None:
    assert http_call(embedded.http_address, "POST", f"/mpub?topic={topic}", b"1\n2").status == 200
    lookupd = ("--lookupd-http-address", embedded.lookupd_http_address)
    done = program("stat", "--count", "1", "--json", *lookupd)
    sample = json.loads(done.stdout)
    assert sample["failed"] == []
    assert [(row["topic"], row["channel"], row["depth"]) for row in sample["channels"]] == [(topic, "", 2)]
    done = run_here("stat", "--count", "2", "--interval", "0.1", *lookupd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(topic.encode()) == 2


def test_stat_says_that_a_full_ephemeral_channel_drops(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(mem_queue_size=3)
    if isinstance(broker, EmbeddedNsqd):  # it has no /config
        broker.node.http_faults.answer("/config/mem_queue_size", status=200, body=b"3")
    broker.prepare(topic, "c")
    assert broker.http("POST", f"/channel/create?topic={topic}&channel=c%23ephemeral").status == 200

    def states() -> dict[str, str]:
        done = run_here("stat", "--count", "1", "--json", "--nsqd-http-address", broker.http_address)
        return {row["channel"]: row["state"] for row in json.loads(done.stdout)["channels"] if row["topic"] == topic}

    broker.publish(topic, b"1", b"2")
    wait_for(lambda: broker.stats(topic, "c#ephemeral")["depth"] == 2)
    assert states() == {"c": "no consumers", "c#ephemeral": "no consumers"}
    broker.publish(topic, b"3", b"4")
    wait_for(lambda: broker.stats(topic, "c")["depth"] == 4)
    wait_for(lambda: states() == {"c": "no consumers", "c#ephemeral": "no consumers, drops"})


def test_topics_channels_and_nodes(embedded: Broker, topic: str) -> None:
    http_call(embedded.http_address, "POST", f"/topic/create?topic={topic}")
    http_call(embedded.http_address, "POST", f"/channel/create?topic={topic}&channel=mine")

    def out(*words: str) -> str:
        code, found, _ = call(*words, "--lookupd-http-address", embedded.lookupd_http_address)
        assert code == 0
        return found

    assert out("topics").split() == [topic]
    assert json.loads(out("channels", topic, "--json")) == [{"channel": "mine"}]
    nodes = json.loads(out("nodes", "--json"))
    assert [node["tcp"] for node in nodes] == [embedded.nsqd_tcp_address]
