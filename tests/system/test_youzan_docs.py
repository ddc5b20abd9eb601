"""The page on Youzan's NSQ: each row of its table names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "youzan.rst"


def test_every_row_of_the_table_names_a_test_that_exists() -> None:
    named = re.findall(r"``(test_\w+)``", PAGE.read_text(encoding="utf-8"))
    contract = ROOT / "tests" / "contract"
    tests = "".join(path.read_text(encoding="utf-8") for path in sorted(contract.glob("test_youzan_*.py")))
    assert len(named) == 10
    assert [name for name in named if f"def {name}(" not in tests] == []
