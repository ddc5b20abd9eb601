"""Checks of the recipes for service managers in docs/deployment.rst."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.cli.worker import command
from gnsq_lite.supervise.exit_codes import ExitCode
from tests.docblocks import blocks

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, RECIPES = DOCS / "worker.rst", DOCS / "deployment.rst"


def recipe(section: str) -> str:
    return next(source for _, source in blocks(RECIPES, "ini") if f"[{section}]" in source)


def parsed(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def container() -> dict[str, Any]:
    """Return the checked fields of the container in the Kubernetes manifest."""
    manifest = next(source for _, source in blocks(RECIPES, "yaml"))
    command = re.search(r"command: (\[.*\])", manifest)
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert command is not None
    assert grace is not None
    probes = dict(re.findall(r"(\w+)Probe:\n +httpGet: \{path: (/\w+), port: metrics\}", manifest))
    port = re.search(r"name: metrics, containerPort: (\d+)", manifest)
    return {"command": json.loads(command[1]), "grace": int(grace[1]), "probes": probes, "port": port and port[1]}


def command_lines() -> list[list[str]]:
    dockerfile = next(source for _, source in blocks(RECIPES, "dockerfile"))
    docker = next(line for line in dockerfile.splitlines() if line.startswith("CMD "))
    shell = re.findall(r"^   (gnsq-lite worker .+)$", PAGE.read_text(encoding="utf-8"), re.M)
    lines = [
        json.loads(docker.removeprefix("CMD ")),
        container()["command"],
        shlex.split(parsed(recipe("Service"))["Service"]["ExecStart"].removeprefix("/usr/bin/env ")),
        shlex.split(parsed(recipe("program:shop-worker"))["program:shop-worker"]["command"]),
        *map(shlex.split, shell),
    ]
    assert len(lines) >= 4
    return lines


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_the_command_lines_are_understood(line: list[str]) -> None:
    assert line[:2] == ["gnsq-lite", "worker"]
    context = command.make_context("worker", list(line[2:]))
    assert context.params["target"] == "shop.jobs:worker"


def test_the_manifest_probes_pages_that_the_command_serves_and_leaves_time_to_drain() -> None:
    found = container()
    options = command.make_context("worker", found["command"][2:]).params
    assert found["probes"] == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert (options["metrics_host"], str(options["metrics_port"])) == ("0.0.0.0", found["port"])
    assert found["grace"] >= 30 + 10 + 1


def test_the_unit_is_valid_for_systemd(tmp_path: Path) -> None:
    unit = tmp_path / "shop-worker.service"
    unit.write_text(recipe("Service"), encoding="utf-8")
    service = parsed(unit.read_text(encoding="utf-8"))["Service"]
    assert int(service["TimeoutStopSec"]) >= 30 + 10 + 1  # the drain limit, what the supervisor adds, and a little
    assert service["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))
    if shutil.which("systemd-analyze") is None:
        return
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], check=False, capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if "shop-worker" in line]
    assert (complaints, done.returncode) == ([], 0), done.stderr
