"""The recipes of docs/recordings.rst: other tools read what recorders sealed, while a recorder writes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recording.recipes import Place, recipe


@pytest.mark.parametrize("name", ["duckdb", "polars", "pyarrow.dataset"])
def test_a_tool_reads_the_folder_before_the_first_rows_and_after_each_file(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    clicks = Place(tmp_path / "clicks")
    block = recipe(f"import {name}\n")
    for _ in range(2):
        said, _ = clicks.run(block)
        rows = {"duckdb": f"[({clicks.rows}, ", "pyarrow.dataset": str(clicks.rows)}
        if name != "polars":
            assert said.startswith(rows[name])
        else:
            assert (f" {clicks.rows} " in said) == (clicks.rows > 0)
        clicks.add(3)
        clicks.add(4)
