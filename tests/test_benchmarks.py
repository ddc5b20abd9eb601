"""The benchmarks work: every kind of case at its smallest size.  No figure is judged: a timing is no test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import chosen_cases, main, parser
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


def test_the_readme_gets_a_row_for_each_client_and_a_column_for_each_case(tmp_path: Path) -> None:
    readme = tmp_path / "README.rst"
    readme.write_text(f"before\n{report._BEGIN}\nold\n{report._END}\nafter\n")
    about = {"when": "today", "machine": dict.fromkeys(("cpu", "cores", "load"), "x"), "versions": {"a": "1"}}
    usual = {"kind": "consume", "server": "nsqd", "rounds": 3, "failed": {}}
    measured = [{"value": value, "per_second": 1.0} for value in (1.0, 2000.0, 3000.0)]
    results = [
        {**usual, "title": "1", "rows": {"raw": measured}},
        {**usual, "title": "200", "rows": {"gnsq": measured}, "failed": {"raw": "it crashed"}},
    ]
    report.update_readme({"about": about, "results": results}, readme)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "   raw     2,000  -\n   gnsq    -      2,000\n" in text
    assert "raw failed: it crashed" in text


def test_every_peer_is_pinned() -> None:
    for client in IMPLEMENTATIONS:
        assert client.driver == "go" or (PEERS / client.driver).exists()
        if client.environment:
            lines = (PEERS / "requirements" / f"{client.environment}.txt").read_text().split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
            assert any(line.startswith(f"{client.environment}==") for line in lines)


def test_the_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (HERE / "benchmarks" / "README.rst").read_text()
    commands = re.findall(r"python -m benchmarks(?!\.| versions| spark)([^`\n]*)", readme)
    assert commands
    for arguments in commands:
        parser().parse_args(arguments.partition("#")[0].split())
    assert main(["--list"]) == 0
    assert "gnsq_lite-greenlet" in capsys.readouterr().out
