"""The benchmarks work: every case at its smallest size, on the pump.  No figure is judged: a timing is no test."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import delivery
from benchmarks.__main__ import chosen_cases, main, parser
from benchmarks.cases import IMPLEMENTATIONS
from benchmarks.environments import PEERS
from benchmarks.server.processes import Pump

HERE = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.program
@pytest.mark.timeout(600)  # less than half a minute, where nothing else runs
def test_the_quick_run_measures_every_case_of_ours_and_writes_tables_json_and_plots(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--frames", "1000", "--body", "100", "--out", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((tmp_path / "results.json").read_text())
    titles = {case.title for case in chosen_cases(parser().parse_args(["--quick", "--body", "100"]))}
    assert {result["title"] for result in run["results"]} == titles
    for result in run["results"]:
        assert result["failed"] == {}
        assert any(name.startswith("gnsq_lite") for name in result["rows"]), result["title"]
    for name in ("benchmarks-consume.svg", "benchmarks-publish.svg"):
        assert (tmp_path / name).read_text().startswith("<svg ")
    assert "gnsq_lite-greenlet" in (tmp_path / "results.txt").read_text()
    assert {"when", "machine", "versions"} <= set(run["about"])


def talk(pump: Pump, said: bytes, wanted: int, then: bytes = b"NOP\n") -> bytes:
    """Say *said* to the pump, read until *wanted* bytes are there, say *then*, and hear no more."""
    heard = b""
    host, port = pump.addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(said)
        while len(heard) < wanted:
            more = sock.recv(65536)
            assert more
            heard += more
        sock.sendall(then)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    return heard


def a_pump(**config: Any) -> Pump:
    """Return a pump with ten messages of five bytes."""
    given = {"messages": 10, "body": 5, "text": "hello", "codec": "plain", "max_in_flight": 4, "listeners": 1}
    return Pump(**{**given, "beat_every_messages": 0, "rate": 0, **config})


SUB = b"  V2SUB bench bench\n"


def test_the_pump_sends_no_more_than_ready_allows() -> None:
    with a_pump() as pump:
        heard = talk(pump, SUB + b"RDY 4\n", 10 + 4 * 39)
        assert heard.count(b"hello") == 4
        assert pump.stop()["sent"] == 4


@pytest.mark.parametrize(
    ("said", "violation"),
    [
        (b"RDY 5\n", "RDY 5 is above 4"),
        (b"FIN 0000000000000000\nFIN 0000000000000000\n", "message 0 finished twice"),
        (b"FIN 0000000000000009\n", "message 9 finished before it was sent"),
        (b"PUB x\n", "command not expected after SUB"),
    ],
)
def test_the_pump_finds_what_breaks_a_rule(said: bytes, violation: str) -> None:
    with a_pump(messages=1) as pump:
        talk(pump, SUB + b"RDY 1\n", 10 + 39, said)
        found = pump.stop()["violations"]
    assert any(violation in text for text in found), found


def test_every_peer_is_pinned() -> None:
    for client in IMPLEMENTATIONS:
        assert client.driver == "go" or (PEERS / client.driver).exists()
        if client.environment:
            lines = (PEERS / "requirements" / f"{client.environment}.txt").read_text().split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
            assert any(line.startswith(f"{client.environment}==") for line in lines)


def test_the_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (HERE / "benchmarks" / "README.rst").read_text()
    commands = re.findall(r"python -m benchmarks(?!\.)([^`\n]*)", readme)
    assert commands
    for arguments in commands:
        parser().parse_args(arguments.partition("#")[0].split())
    comparisons = re.findall(r"python -m benchmarks\.delivery([^`\n]*)", readme)
    assert comparisons
    for arguments in comparisons:
        delivery.parser().parse_args(arguments.split())
    assert main(["--list"]) == 0
    assert "gnsq_lite-greenlet" in capsys.readouterr().out
