from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.unit.wire.rules import RULES, Rule

HERE = Path(__file__).parent


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.heading)
def test_each_line_of_the_map_names_a_symbol_and_a_test_that_exist(rule: Rule) -> None:
    found: object = importlib.import_module(f"gnsq_lite.wire.{rule.module}")
    for part in rule.symbol.split("."):
        found = getattr(found, part)
    file, _, function = rule.test.partition("::")
    text = (HERE / f"{file}.py").read_text(encoding="utf-8")
    head, met, _ = text.partition(f"def {function}(")
    assert met, f"{rule.test} does not exist"
    marks = re.findall(r'^@pytest\.mark\.rule\("([A-Z]+-\d+)"\)$', head[head.rfind("\n\n\n") :], re.MULTILINE)
    assert rule.rule in marks, f"{rule.test} is not marked with {rule.rule}"


def test_no_line_is_there_twice() -> None:
    assert len({rule.heading for rule in RULES}) == len(RULES)


def test_every_module_of_the_package_is_in_the_map_or_only_data() -> None:
    modules = {path.stem for path in Path(importlib.import_module("gnsq_lite.wire").__path__[0]).glob("*.py")}
    assert modules - {rule.module for rule in RULES} == {"__init__", "constants"}


@pytest.mark.parametrize("path", sorted(Path(importlib.import_module("gnsq_lite.wire").__path__[0]).glob("*.py")))
def test_nothing_here_does_io_or_reads_time_or_chance(path: Path) -> None:
    imported = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    roots = {name.partition(".")[0] for name in imported}
    assert not roots & {"gevent", "socket", "ssl", "time", "random", "threading", "logging", "asyncio", "os"}
    assert all(
        name.startswith(
            ("gnsq_lite.wire", "gnsq_lite.errors", "gnsq_lite.option", "gnsq_lite.speed", "gnsq_lite.packing")
        )
        for name in imported
        if name.startswith("gnsq_lite")
    )
    if path.stem == "constants":
        assert imported == {"__future__", "typing"}
