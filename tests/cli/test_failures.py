"""Commands that fail end with one line and an exit code, and lose no message."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.broker import Broker
from gnsq_lite.cli.lists import show
from gnsq_lite.cli.output import console, errors
from gnsq_lite.cli.pub import Read, pieces
from tests.cli.programs import call, command, environment
from tests.cli.programs import run as program
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker

NOWHERE = "127.0.0.1:1"


def test_tail_exits_with_the_error_that_ended_its_reader() -> None:
    with Broker(lookupd=False) as broker:  # it offers no TLS
        done = program("tail", "--topic", "t", "--tls", "--nsqd-tcp-address", broker.nsqd_tcp_address)
    assert done.returncode == 1
    assert b"TLS was requested" in done.stderr.splitlines()[-1]
    assert b"Traceback" not in done.stderr


@pytest.mark.rule("YZ-14")
@pytest.mark.parametrize("kind", ["tail", "pub"])
def test_youzans_nsqd_needs_the_flag_dialect(kind: str) -> None:
    with YouzanBroker() as broker:
        broker.youzan.create_topic("t", 1)
        where = (kind, "--topic", "t", "--lookupd-http-address", broker.lookupd_http_address)
        done = program(*where, stdin=b"x\n", timeout=30.0)
        assert done.returncode == 1
        assert b"Youzan's NSQ" in done.stderr.splitlines()[-1]
        assert b"pass --dialect youzan" in done.stderr.splitlines()[-1]
        assert broker.youzan.bodies("t", 0) == []
        if kind == "pub":
            assert program(*where, "--dialect", "youzan", stdin=b"x\n").returncode == 0
            assert broker.youzan.bodies("t", 0) == [b"x"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pub", "--topic", "t", "--delimiter", "\\x"), "--delimiter"),
        (("pub", "--topic", "t", "--delimiter", "\\u1234"), "--delimiter"),
        (("pub", "--topic", "a b"), "'a b'"),
        (("pub", "--topic", "t", "--tls-key", "key.pem"), "--tls-cert"),
        (("tail", "--topic", "a b"), "'a b'"),
        (("tail",), "--topic"),
        (("no-such-command",), "no-such-command"),
        (("stat", "--interval", "5 weeks"), "'5 weeks'"),
    ],
)
def test_invalid_arguments_are_refused_before_connecting(arguments: tuple[str, ...], said: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2
    assert said in err


def test_a_closed_standard_input_is_wrong_usage() -> None:
    line = subprocess.list2cmdline(command("pub", "--topic", "t"))
    done = subprocess.run(
        ["sh", "-c", f"exec {line} <&-"], check=False, capture_output=True, timeout=20, env=environment()
    )
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr


def test_a_broker_names_the_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = program("broker", "--tcp-address", address, "--http-address", "127.0.0.1:0", "--no-lookupd")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert address.encode() in done.stderr


def test_a_closed_pipe_is_no_failure_and_the_message_is_requeued() -> None:
    with Broker(lookupd=False) as broker:
        on = ("--nsqd-tcp-address", broker.nsqd_tcp_address)
        assert program("pub", "--topic", "t", *on, stdin=b"one\ntwo\n").returncode == 0
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as nobody:
            arguments = command("tail", "--topic", "t", "--channel", "c", *on)
            done = subprocess.run(
                arguments, stdout=nobody, stderr=subprocess.PIPE, check=False, timeout=30, env=environment()
            )
        assert (done.returncode, done.stderr) == (0, b"")
        wait_for(lambda: broker.node.stats()["topics"][0]["channels"][0]["depth"] == 2, what="the messages")


def test_a_list_into_a_closed_pipe_is_no_failure() -> None:
    with Broker() as broker:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as nobody:
            arguments = command("nodes", "--lookupd-http-address", broker.lookupd_http_address)
            done = subprocess.run(
                arguments, stdout=nobody, stderr=subprocess.PIPE, check=False, timeout=30, env=environment()
            )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("output", "code", "said"), [(">/dev/full", 1, b"No space left"), (">&-", 2, b"closed")])
def test_tail_whose_output_fails_exits_and_requeues_the_message(output: str, code: int, said: bytes) -> None:
    with Broker(lookupd=False) as broker:
        on = ("--nsqd-tcp-address", broker.nsqd_tcp_address)
        assert program("pub", "--topic", "t", *on, stdin=b"one\n").returncode == 0
        line = subprocess.list2cmdline(command("tail", "--topic", "t", "--channel", "c", *on))
        done = subprocess.run(
            ["sh", "-c", f"exec {line} {output}"], stderr=subprocess.PIPE, check=False, timeout=60, env=environment()
        )

        def is_back() -> bool:
            (topic,) = broker.node.stats()["topics"]
            return sum(each["depth"] for each in topic["channels"] or [topic]) == 1

        wait_for(is_back, what="the message")
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count(b"\n") <= 4


class Short:
    """Input whose reads are short."""

    def __init__(self, data: bytes, size: int) -> None:
        self._reads = [data[at : at + size] for at in range(0, len(data), size)]

    def read(self, size: int) -> bytes:
        return self._reads.pop(0) if self._reads else b""


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("delimiter", [b"\n", b"--", b"-=-"])
def test_a_delimiter_is_found_wherever_the_reads_end(delimiter: bytes, size: int) -> None:
    data = delimiter.join([b"a", b"", b"long-line-=", b"b" * 20, b"-", b"c"])
    wanted = [piece for piece in data.split(delimiter) if piece]
    source: Any = Short(data, size)
    assert list(pieces([source], delimiter, Read([]))) == wanted


def test_stat_cuts_no_name_off_a_terminal() -> None:
    topic = "a-topic-with-quite-a-long-name." + "x" * 33
    with Broker(lookupd=False) as broker:
        on = ("--nsqd-tcp-address", broker.nsqd_tcp_address)
        assert program("pub", "--topic", topic, *on, stdin=b"one\n").returncode == 0
        at = broker.node.http_address
        done = program("stat", "--count", "1", "--nsqd-http-address", at, COLUMNS="80")
    assert topic.encode() in done.stdout
    assert b"in_flight" in done.stdout


def test_a_demo_that_cannot_publish_every_line_fails(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a line\n" * 300 + b"x" * 2_000_000 + b"\n")  # nsqd takes 1 MiB
    done = program("demo", str(lines))
    assert done.returncode == 1
    assert b"nothing was lost" not in done.stdout
    assert b"Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"gnsq-lite: ")


def test_an_ipv6_address_is_printed_unchanged_in_columns_with_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    address = "[2001:db8:a::b:1]:4150"
    show("nsqds", ["tcp", "version"], [[address, "1.3.0"]], False)
    console.print(address, markup=False)
    errors.print(address, markup=False)
    assert capsys.readouterr() == (f"{address}\t1.3.0\n{address}\n", f"{address}\n")
