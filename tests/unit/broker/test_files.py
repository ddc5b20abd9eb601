"""The broker's files stand on one another: no circle, not even of types."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import gnsq_lite.broker

FOLDER = Path(gnsq_lite.broker.__file__).parent
PREFIX = "gnsq_lite.broker"


def imported(source: str) -> set[str]:
    """Return the files of the broker that *source* imports, in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == PREFIX:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(f"{PREFIX}."):
            found.add(node.module.rpartition(".")[2])
    return found


def test_no_file_imports_itself_in_a_roundabout_way() -> None:
    files = {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    graph = {name: imported(path.read_text(encoding="utf-8")) & set(files) for name, path in files.items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert order.index("session") < order.index("nsqd") < order.index("nsqd_http") < order.index("embedded")
