"""Ten seeds of the loss ledger, and proof that its audit sees what it is there to see."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gevent import monkey

from tests.ledger.__main__ import main

pytestmark = pytest.mark.slow

# Any ten would do: each run begins with publishes that are lost on their way (run.SURE), so that a Writer that took
# a lost connection for an OK lost 10 to 120 messages of 300 in each of these seeds.
SEEDS = range(1, 11)
#: A run is a process: its wall clock jumps, and it is monkey-patched where this one is.
LEDGER = [sys.executable, *(["-m", "gevent.monkey", "--module"] if monkey.is_module_patched("socket") else ["-m"])]


@pytest.mark.slow
@pytest.mark.rule("CONN-3")
@pytest.mark.rule("PUB-2")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_every_duplicate_has_its_fault(seed: int) -> None:
    command = [*LEDGER, "tests.ledger", "--seeds", str(seed), "--messages", "200", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "1 seeds, 200 messages" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "found"),
    [
        ("fin", "which 0 handlers had done"),
        ("ok", "the Writer says OK, no nsqd did"),
        ("twice", "2 handlings by here for 1 deliveries"),
    ],
)
def test_a_client_that_lies_fails_the_run(lie: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Seed 3 speaks TLS: the witness sees into that too.
    assert main(["--seeds", "3", "--messages", "100", "--seconds", "0.5", "--lie", lie]) == 1
    assert found in capsys.readouterr().out


def test_the_command_prints_a_line_for_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "77", "--messages", "20", "--seconds", "0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["seed", "server", "messages"]
    assert lines[1].split()[:2] == ["77", "embedded"]
    assert lines[-1].startswith("1 seeds, 20 messages")
