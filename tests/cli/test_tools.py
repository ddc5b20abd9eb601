"""The command line's tools as a user runs them, against an embedded and a real nsqd."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.cli.app import COMMANDS, run
from gnsq_lite.cli.files import Layout
from tests.certs import Certificates
from tests.cli.programs import Program
from tests.cli.programs import run as program
from tests.contract.authserver import AuthServer
from tests.servers import ServerHandle
from tests.system.test_reader import wait_for


@pytest.fixture
def embedded() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def on(broker: ServerHandle | Broker) -> tuple[str, str]:
    address = broker.nsqd_tcp_address if isinstance(broker, Broker) else broker.tcp_address
    return "--nsqd-tcp-address", address


# -- the program


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_it_names_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "Usage: gnsq-lite" in capsys.readouterr().out


def test_wrong_usage_is_exit_code_2_and_one_line() -> None:
    for arguments in (["no-such-command"], ["tail"], ["pub", "--topic", "a b", "--nsqd-tcp-address", "x:y"]):
        done = program(*arguments)
        assert done.returncode == 2, arguments
        assert b"Traceback" not in done.stderr


def test_a_failure_is_exit_code_1_and_one_line() -> None:
    done = program("pub", "--topic", "t", "--nsqd-tcp-address", "127.0.0.1:1", "--timeout", "0.3", stdin=b"x\n")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") <= 3
    assert b"127.0.0.1:1" in done.stderr
    assert b"(0 messages were published)" in done.stderr


def test_shell_completion_is_there() -> None:
    done = program(_GNSQ_LITE_COMPLETE="bash_source")
    assert b"complete" in done.stdout


# -- demo and broker


def test_the_demo_proves_that_nothing_was_lost(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(12_000)) + b"\n\nlast without newline")
    done = program("demo", str(source))
    assert done.returncode == 0, done.stderr
    assert b"lines published: 12,003" in done.stdout
    assert b"lines handled:   12,003" in done.stdout
    assert b"retries:         2" in done.stdout
    assert b"nothing was lost" in done.stdout


def test_the_demo_runs_on_an_nsqd_of_the_users_and_from_standard_input(broker: ServerHandle) -> None:
    done = program("demo", "-", "--nsqd", broker.tcp_address, stdin=b"a\nb\nc\n")
    assert done.returncode == 0, done.stderr
    assert b"lines handled:   3" in done.stdout


@pytest.mark.rule("YZ-6")
@pytest.mark.rule("YZ-12")
def test_the_demo_of_youzans_nsq_proves_order_while_a_leader_moves() -> None:
    done = program("demo", "--youzan", "--limit", "1500")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"every key kept its order and nothing was lost" in done.stdout
    assert b"leader moved:    yes" in done.stdout


def test_the_demo_of_nothing_says_so() -> None:
    done = program("demo", "-")
    assert done.returncode == 1
    assert b"no lines" in done.stderr


def test_the_broker_runs_alone_and_ends_on_a_signal() -> None:
    zero = ("--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
    more = ("--nsqlookupd-tcp-address", "127.0.0.1:0", "--nsqlookupd-http-address", "127.0.0.1:0", "--json")
    for number in (signal.SIGTERM, signal.SIGINT):
        with Program("broker", *zero, *more) as running:
            assert running.process.stdout is not None
            listening = json.loads(running.process.stdout.readline())
            assert listening["storage"] == "memory"
            done = program("pub", "--topic", "t", "--nsqd-tcp-address", listening["nsqd_tcp"][0], stdin=b"x\ny\n")
            assert done.returncode == 0, done.stderr
            lookupd = ("--lookupd-http-address", listening["lookupd_http"][0])
            assert program("topics", *lookupd).stdout == b"t\n"
            code, _, err = running.stop(number)
            assert (code, err) == (0, b"")


def test_bench_measures_and_loses_nothing(broker: ServerHandle) -> None:
    done = program("bench", "-n", "500", "--json", "--nsqd-tcp-address", broker.tcp_address)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["what"].split(",")[0] for row in rows] == ["publish", "publish", "publish", "consume"]
    assert rows[-1]["messages"] == 1 + 100 + 500 + 500
    assert all(row["per second"] > 0 for row in rows)


# -- pub and tail


def test_pub_publishes_lines_and_tail_prints_them(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "c")
    done = program("pub", "--topic", topic, *on(broker), stdin=b"one\ntwo\n\nthree")
    assert done.returncode == 0, done.stderr
    assert b"3 messages published" in done.stderr
    done = program("tail", "--topic", topic, "--channel", "c", "-n", "3", *on(broker))
    assert sorted(done.stdout.split(b"\n")) == [b"", b"one", b"three", b"two"]


def test_pub_takes_files_a_delimiter_and_batches(broker: ServerHandle, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1;2;3")
    (tmp_path / "b").write_bytes(b"4;" + b"x" * 100_000)
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    done = program("pub", "--topic", topic, "--delimiter", ";", "--batch", "2", *on(broker), *files)
    assert done.returncode == 0, done.stderr
    assert broker.stats(topic)["depth"] == 5


def test_pub_keeps_to_its_rate(broker: ServerHandle, topic: str) -> None:
    began = time.monotonic()
    done = program("pub", "--topic", topic, "--rate", "20", *on(broker), stdin=b"x\n" * 21)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began >= 1.0


def test_tail_prints_json_with_metadata(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "c")
    bodies = [b"\xffbinary", b"\\xffbinary", "t\u00e9xt \x1b[2J\x7f".encode()]
    broker.publish(topic, *bodies)
    done = program("tail", "--topic", topic, "--channel", "c", "-n", "3", "--json", *on(broker))
    assert not [byte for byte in done.stdout if (byte < 32 and byte != 10) or byte > 126]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    decode = {"utf-8": str.encode, "base64": base64.b64decode}
    assert sorted(decode[record["encoding"]](record["body"]) for record in records) == sorted(bodies)
    assert {(record["topic"], record["attempts"]) for record in records} == {(topic, 1)}


def test_progress_has_a_rate_and_the_time_left_where_the_whole_is_known(tmp_path: Path) -> None:
    with Broker(lookupd=False) as broker:
        source = tmp_path / "lines"
        source.write_bytes(b"x\n" * 90)
        done = program("pub", "--topic", "t", "--rate", "30", *on(broker), str(source))
        assert done.returncode == 0, done.stderr
        assert b"/s)" in done.stderr
        assert b" s left" in done.stderr
        done = program("pub", "--topic", "t", "--rate", "30", *on(broker), stdin=b"x\n" * 90)
        assert b" s left" not in done.stderr


def test_the_broker_takes_nsqds_flags_for_tls_and_auth(certs: Certificates) -> None:
    zero = ("--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--no-lookupd", "--json")
    tls = ("--tls-cert", certs.server.cert, "--tls-key", certs.server.key, "--tls-required", "true")
    with AuthServer() as auth_server:
        auth_server.allow("hunter2")
        with Program("broker", *zero, *tls, "--auth-http-address", auth_server.address) as running:
            assert running.process.stdout is not None
            address = json.loads(running.process.stdout.readline())["nsqd_tcp"][0]
            flags = ("pub", "--topic", "t", "--nsqd-tcp-address", address, "--timeout", "3")
            done = program(*flags, "--tls-root-ca-file", certs.ca, stdin=b"x\n", NSQ_AUTH_SECRET="hunter2")
            assert done.returncode == 0, done.stderr
            done = program(*flags, "--tls-root-ca-file", certs.ca, stdin=b"x\n")
            assert done.returncode == 1
            assert b"--auth-secret" in done.stderr
            done = program(*flags, stdin=b"x\n", NSQ_AUTH_SECRET="hunter2")
            assert done.returncode == 1
            assert b"hunter2" not in done.stderr


# -- to-file


def is_drained(broker: ServerHandle, topic: str, channel: str) -> bool:
    stats = broker.stats(topic, channel)
    return bool(stats) and stats["message_count"] > 0 and (stats["depth"], stats["in_flight_count"]) == (0, 0)


def read_all(folder: Path) -> list[bytes]:
    lines = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        lines += (gzip.decompress(data) if ".gz" in path.name else data).splitlines()
    return lines


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_to_file_writes_lines_and_renames_when_done(
    broker: ServerHandle, topic: str, tmp_path: Path, compress: bool
) -> None:
    broker.prepare(topic, "nsq_to_file")
    bodies = [b"%d" % n for n in range(50)]
    broker.publish(topic, *bodies)
    flags = ("--topic", topic, "--output-dir", str(tmp_path / "out"), "--sync-interval", "0.1")
    with Program("to-file", *flags, *(("--gzip",) if compress else ()), *on(broker)) as running:
        wait_for(lambda: is_drained(broker, topic, "nsq_to_file"), timeout=20)
        code, _, err = running.stop()
    assert code == 0, err
    names = os.listdir(tmp_path / "out")
    assert len(names) == 1
    assert names[0].endswith(".log.gz" if compress else ".log")
    assert sorted(read_all(tmp_path / "out")) == sorted(bodies)


def test_to_file_killed_at_any_moment_loses_nothing_and_overwrites_nothing(topic: str, tmp_path: Path) -> None:
    with Broker(msg_timeout=2.0) as broker:
        kill_and_compare(broker, topic, tmp_path / "out")


def kill_and_compare(embedded: Broker, topic: str, out: Path) -> None:
    chance = random.Random(7)
    out.mkdir()
    bodies = {b"%d" % n for n in range(3000)}
    source = b"".join(body + b"\n" for body in bodies)
    assert program("pub", "--topic", topic, "--batch", "500", *on(embedded), stdin=source).returncode == 0
    flags = ("--topic", topic, "--output-dir", str(out), "--sync-interval", "0.05", "--max-in-flight", "50")
    flags = (*flags, "--rotate-size", "2000")
    before: dict[str, bytes] = {}
    for _ in range(6):
        with Program("to-file", *flags, *on(embedded)) as running:
            time.sleep(0.6 + chance.random() * 0.5)
            running.kill()
        now = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".part"}
        assert all(now[name].startswith(data) for name, data in before.items())  # what was synced stays as it was
        before = now
    embedded.node.drop_connections()
    with Program("to-file", *flags, *on(embedded)) as running:
        channel: list[Any] = []

        def is_empty() -> bool:
            channel[:] = embedded.node.stats()["topics"][0]["channels"]
            idle = bool(channel) and channel[0]["depth"] == 0 and channel[0]["in_flight_count"] == 0
            return idle and bool(channel[0]["clients"])

        wait_for(is_empty, timeout=90)
        assert running.stop()[0] == 0
    assert set(read_all(out)) == bodies
    assert not list(out.glob("*.part"))


def test_to_file_finishes_a_file_of_a_silent_topic_when_its_time_is_over(
    embedded: Broker, topic: str, tmp_path: Path
) -> None:
    assert program("pub", "--topic", topic, *on(embedded), stdin=b"one\n").returncode == 0
    flags = (
        "--topic",
        topic,
        "--output-dir",
        str(tmp_path),
        "--sync-interval",
        "0.1",
        "--rotate-interval",
        "0.5",
        "--skip-empty-files",
    )
    with Program("to-file", *flags, *on(embedded)):
        wait_for(lambda: list(tmp_path.glob("*.log")), timeout=20)
        assert not list(tmp_path.glob("*.part"))
        assert read_all(tmp_path) == [b"one"]


def test_to_file_leaves_what_is_not_its_own_and_warns_of_what_is_damaged(embedded: Broker, tmp_path: Path) -> None:
    damaged = Layout(output_dir=tmp_path, work_dir=tmp_path, gzip=True).part("a.gz")
    files = {tmp_path / "video.part": b"no newline", damaged: b"no gzip"}
    for path, data in files.items():
        path.write_bytes(data)
    with Program("to-file", "--topic", "quiet", "--output-dir", str(tmp_path), *on(embedded)) as running:
        wait_for(lambda: embedded.node.stats()["topics"], timeout=20)
        _, _, err = running.stop()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert f"WARNING gnsq_lite.to_file[main] left {damaged}".encode() in err.splitlines()[0]


def test_to_file_refuses_a_name_in_gz_for_lines() -> None:
    done = program("to-file", "--topic", "t", "--filename-format", "<TOPIC><REV>.gz", timeout=20.0)
    assert done.returncode == 2
    assert b"must not end in .gz without gzip" in done.stderr


# -- to-http


class Destination:
    """An HTTP server that keeps what it gets and fails when told."""

    def __init__(self) -> None:
        outer = self
        self.got: list[tuple[str, str, bytes, str | None]] = []
        self.failures = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                failing, outer.failures = outer.failures > 0, outer.failures - 1
                if not failing:
                    outer.got.append(("POST", self.path, body, self.headers["X-Mine"]))
                self.send_response(500 if failing else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                outer.got.append(("GET", self.path, b"", None))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        import threading

        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def destination() -> Iterator[Destination]:
    server = Destination()
    yield server
    server.close()


def test_to_http_posts_each_body_and_retries_by_requeue(
    broker: ServerHandle, topic: str, destination: Destination
) -> None:
    broker.prepare(topic, "nsq_to_http")
    destination.failures = 2
    broker.publish(topic, b"one", b"two", b"three")
    flags = ("--topic", topic, "--post", destination.url + "/in", "--header", "X-Mine: yes", "--requeue-delay", "0.1")
    with Program("to-http", *flags, *on(broker)) as running:
        wait_for(lambda: len(destination.got) == 3, timeout=30)
        code, _, err = running.stop()
    assert code == 0
    assert err.count(b"POST: HTTP 500") == 2
    assert b"Traceback" not in err
    assert sorted(body for _, _, body, _ in destination.got) == [b"one", b"three", b"two"]
    assert {(path, header) for _, path, _, header in destination.got} == {("/in", "yes")}


def test_to_http_gets_with_the_body_in_the_url(broker: ServerHandle, topic: str, destination: Destination) -> None:
    broker.prepare(topic, "nsq_to_http")
    broker.publish(topic, b"a b&c")
    with Program("to-http", "--topic", topic, "--get", destination.url + "/?q=%s", *on(broker)) as running:
        wait_for(lambda: destination.got, timeout=20)
        assert running.stop()[0] == 0
    assert destination.got[0][1] == "/?q=a+b%26c"


# -- relay


def test_relay_moves_messages_and_filters_by_json_field(broker: ServerHandle, embedded: Broker, topic: str) -> None:
    broker.prepare(topic, "nsq_to_nsq")
    records = [{"kind": kind, "n": n, "secret": 1} for n, kind in enumerate(["a", "b", "a"])]
    broker.publish(topic, *[json.dumps(record).encode() for record in records], b"no json")
    flags = ("--topic", topic, "--destination-nsqd-tcp-address", embedded.nsqd_tcp_address + "*2")
    chosen = ("--destination-topic", "there", "--require-json-field", "kind", "--require-json-value", "a")
    keep = ("--whitelist-json-field", "n")
    with Program("relay", *flags, *chosen, *keep, *on(broker)) as running:
        wait_for(lambda: is_drained(broker, topic, "nsq_to_nsq"), timeout=20)
        code, _, err = running.stop()
    assert code == 0, err
    assert b"2 messages relayed, 2 filtered out" in err
    done = program("tail", "--topic", "there", "--channel", "c", "-n", "2", *on(embedded))
    assert sorted(json.loads(line)["n"] for line in done.stdout.splitlines()) == [0, 2]


def test_relay_leaves_a_destination_alone_that_does_not_answer(embedded: Broker, topic: str) -> None:
    source = b"".join(b"%d\n" % n for n in range(50))
    assert program("pub", "--topic", topic, *on(embedded), "--batch", "50", stdin=source).returncode == 0
    there = ("127.0.0.1:1", embedded.nsqd_tcp_address)
    flags = [flag for each in there for flag in ("--destination-nsqd-tcp-address", each)]
    opts = ("--producer-opt", "dial_timeout,1s", "--batch", "5", "--destination-topic", "there")
    with Program("relay", "--topic", topic, *flags, *opts, *on(embedded)) as running:
        count = lambda: sum(t["depth"] for t in embedded.node.stats()["topics"] if t["topic_name"] == "there")  # noqa: E731
        wait_for(lambda: count() >= 50, timeout=90)
        code, _, err = running.stop()
    assert code == 0
    assert err.count(b"127.0.0.1:1") <= 8, err


def test_relay_finishes_nothing_that_the_destination_has_not_taken(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "nsq_to_nsq")
    broker.publish(topic, b"x")
    with Program("relay", "--topic", topic, "--destination-nsqd-tcp-address", "127.0.0.1:1", *on(broker)) as running:
        wait_for(lambda: broker.stats(topic, "nsq_to_nsq").get("clients"), timeout=20)
        time.sleep(0.3)
        running.kill()
    stats = broker.stats(topic, "nsq_to_nsq")
    assert stats["depth"] + stats["in_flight_count"] + stats["deferred_count"] == 1


# -- stat and the lists


def test_stat_prints_json_and_a_table(embedded: Broker, topic: str) -> None:
    program("pub", "--topic", topic, *on(embedded), stdin=b"1\n2\n")
    lookupd = ("--lookupd-http-address", embedded.lookupd_http_address)
    done = program("stat", "--once", "--json", *lookupd)
    sample = json.loads(done.stdout)
    assert sample["failed"] == []
    assert [(row["topic"], row["channel"], row["depth"]) for row in sample["channels"]] == [(topic, "", 2)]
    done = program("stat", "--count", "2", "--interval", "0.1", *lookupd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(topic.encode()) == 2


def test_topics_channels_and_nodes(embedded: Broker, topic: str) -> None:
    program("pub", "--topic", topic, *on(embedded), stdin=b"1\n")
    program("tail", "--topic", topic, "--channel", "mine", "-n", "1", *on(embedded))
    lookupd = ("--lookupd-http-address", embedded.lookupd_http_address)
    assert program("topics", *lookupd).stdout.decode().split() == [topic]
    assert json.loads(program("channels", topic, "--json", *lookupd).stdout) == [{"channel": "mine"}]
    nodes = json.loads(program("nodes", "--json", *lookupd).stdout)
    assert [node["tcp"] for node in nodes] == [embedded.nsqd_tcp_address]
    done = program("topics", "--lookupd-http-address", "127.0.0.1:1")
    assert done.returncode == 1
    assert b"127.0.0.1:1" in done.stderr
