"""The benchmarks run: every kind of case at its smallest size, without judging figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import chosen_cases, parser
from benchmarks.cases import IMPLEMENTATIONS
from benchmarks.environments import PEERS

HERE = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.program
@pytest.mark.timeout(600)  # half a minute, where nothing else runs
def test_the_quick_run_measures_its_cases_and_writes_tables(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--messages", "1000", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((tmp_path / "results.json").read_text())
    wanted = [case.title for case in chosen_cases(parser().parse_args(["--quick"]))]
    assert [result["title"] for result in run["results"]] == wanted
    for result in run["results"]:
        assert result["failed"] == {}
        assert any(name.startswith("gnsq_lite") for name in result["rows"]), result["title"]
    assert "gnsq_lite-greenlet" in (tmp_path / "results.rst").read_text()


def test_every_peer_is_pinned() -> None:
    for client in IMPLEMENTATIONS:
        assert client.driver == "go" or (PEERS / client.driver).exists()
        if client.environment:
            lines = (PEERS / "requirements" / f"{client.environment}.txt").read_text().split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
            assert any(line.startswith(f"{client.environment}==") for line in lines)
