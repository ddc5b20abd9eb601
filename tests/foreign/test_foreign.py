"""How the suites' outcomes are read and compared; the suites themselves are run by ``python -m tests.foreign``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.foreign.__main__ import differences, main
from tests.foreign.server import arguments
from tests.foreign.suites import SUITES, go_outcomes, junit_outcomes, mocha_outcomes, put_on_path
from tests.programs import wait_for
from tests.servers import http_call


def test_a_difference_is_what_never_came_to_an_end_that_the_other_gave() -> None:
    nsqd = {"same": {"pass"}, "races": {"fail", "pass"}, "kinder": {"fail"}, "only here": {"pass"}}
    broker = {"same": {"pass"}, "races": {"pass"}, "kinder": {"pass"}}
    assert differences({"nsqd": nsqd, "broker": broker}) == {
        "kinder": {"nsqd": {"fail"}, "broker": {"pass"}},
        "only here": {"nsqd": {"pass"}, "broker": {"absent"}},
    }


def test_outcomes_of_go_are_read_with_those_that_did_not_end() -> None:
    lines = [
        b'{"Action":"start","Package":"p"}',
        b'{"Action":"run","Test":"TestA"}',
        b"=== no JSON",
        b'{"Action":"output","Test":"TestA","Output":"x"}',
        b'{"Action":"pass","Test":"TestA"}',
        b'{"Action":"run","Test":"TestB"}',
        b'{"Action":"fail","Package":"p"}',
    ]
    assert go_outcomes(b"\n".join(lines)) == {"TestA": "pass", "TestB": "unfinished"}


def test_outcomes_of_pytest_are_read() -> None:
    report = b"""<testsuites><testsuite>
        <testcase classname="a.B" name="c"/>
        <testcase classname="a" name="d"><failure>x</failure></testcase>
        <testcase classname="a" name="e"><error>x</error></testcase>
        <testcase classname="a" name="f"><skipped/></testcase>
    </testsuite></testsuites>"""
    assert junit_outcomes(report) == {"a.B.c": "pass", "a.d": "fail", "a.e": "fail", "a.f": "skip"}


def test_outcomes_of_mocha_are_read() -> None:
    report = b'{"passes":[{"fullTitle":"a"}],"failures":[{"fullTitle":"b"}],"pending":[{"fullTitle":"c"}]}'
    assert mocha_outcomes(report) == {"a": "pass", "b": "fail", "c": "skip"}


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        (
            "nsqd",
            ["-tcp-address=:1", "--verbose", "-sync-timeout", "2s", "-snappy=false", "--tls-required"],
            ["--no-lookupd", "--tcp-address=:1", "--no-snappy", "--tls-required=true"],
        ),
        (
            "nsqlookupd",
            ["-tcp-address=:1", "--http-address", ":2", "--broadcast-address=x"],
            ["--nsqds=0", "--nsqlookupd-http-address=:2", "--broadcast-address=x"],
        ),
    ],
)
def test_flags_of_the_go_programs_become_flags_of_the_broker(name: str, given: list[str], made: list[str]) -> None:
    assert arguments(name, given) == made


@pytest.mark.parametrize("name", ["nsqd", "nsqlookupd"])
def test_the_broker_runs_under_the_names_of_the_real_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    put_on_path("broker", tmp_path / "bin")
    version = subprocess.run([tmp_path / "bin" / name, "--version"], capture_output=True, check=True, timeout=60)
    assert version.stdout.startswith(f"{name} v1.3.0 (built w/go".encode())
    argv = [tmp_path / "bin" / name, "-tcp-address=127.0.0.1:0", "--http-address", "127.0.0.1:0", "--verbose"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(2)]
        process.terminate()
        assert process.wait(60) == 0
    assert [b": listening on 127.0.0.1:" in line for line in said] == [True, True]


@contextmanager
def started(*argv: str | Path) -> Iterator[dict[str, str]]:
    """Run a program of the broker's under a real one's name; yield the address of each kind ("TCP", "HTTP")."""
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline().strip() for _ in range(2)]
        try:
            yield {line.split(": ")[1]: line.rpartition(" ")[2] for line in lines}
        finally:
            process.terminate()


def test_the_nsqd_program_registers_its_topics_at_the_nsqlookupd_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    put_on_path("broker", tmp_path / "bin")
    anywhere = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    with started(tmp_path / "bin" / "nsqlookupd", *anywhere) as lookupd:
        with started(tmp_path / "bin" / "nsqd", *anywhere, f"--lookupd-tcp-address={lookupd['TCP']}") as nsqd:
            for query in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
                assert http_call(nsqd["HTTP"], "POST", query).status == 200
            wait_for(lambda: lookup(lookupd["HTTP"]) == (["c"], [int(nsqd["TCP"].rpartition(":")[2])]), 20.0, "lookup")
        wait_for(lambda: lookup(lookupd["HTTP"]) == (["c"], []), 20.0, "the end of the registration")


def lookup(address: str) -> tuple[list[str], list[int]]:
    answer = http_call(address, "GET", "/lookup?topic=t")
    if answer.status != 200:
        return [], []
    return answer.json()["channels"], [producer["tcp_port"] for producer in answer.json()["producers"]]


def test_a_suite_that_is_not_there_is_named_with_what_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for suite in SUITES.values():
        monkeypatch.delenv(suite.variable, raising=False)
    assert main([]) == 2
    assert "pynsq: not run, GNSQ_FOREIGN_PYNSQ names no checkout" in capsys.readouterr().out


def test_the_server_starts_without_the_checkout_on_the_path() -> None:
    program = Path(__file__).with_name("server.py")
    done = subprocess.run(
        [sys.executable, str(program), "nsqd", "-version"], check=False, cwd="/", capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
