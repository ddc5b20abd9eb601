"""The broker under the names of NSQ's programs, as ``python -m tests.foreign`` starts it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.foreign.suites import put_on_path
from tests.programs import wait_for
from tests.servers import http_call


@contextmanager
def started(*argv: str | Path) -> Iterator[dict[str, str]]:
    """Run a program; yield its logged addresses by kind ("TCP", "HTTP")."""
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
