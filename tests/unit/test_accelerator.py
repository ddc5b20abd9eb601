"""Which of the two implementations runs is chosen by the environment, and a demand is met or refused, never ignored."""

from __future__ import annotations

import importlib
import sys

import pytest

from gnsq_lite import _core


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({}, "auto"),
        ({"GNSQ_LITE_IMPL": ""}, "auto"),
        ({"GNSQ_LITE_IMPL": "c"}, "c"),
        ({"GNSQ_LITE_IMPL": "python"}, "python"),
    ],
)
def test_the_environment_chooses(environment: dict[str, str], word: str) -> None:
    assert _core.wanted(environment) == word


def test_another_word_is_refused() -> None:
    with pytest.raises(ImportError, match="'c', 'python' or 'auto'"):
        _core.wanted({"GNSQ_LITE_IMPL": "fast"})


def test_a_missing_extension_is_an_error_only_where_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ImportError("no native")
    monkeypatch.setattr(_core, "WANTED", "auto")
    _core.do_without(missing)
    monkeypatch.setattr(_core, "WANTED", "c")
    with pytest.raises(ImportError, match="was not built"):
        _core.do_without(missing)


def test_what_was_demanded_runs_here() -> None:
    if _core.WANTED != "auto":
        assert _core.is_accelerated == (_core.WANTED == "c")


IN_ANOTHER_INTERPRETER = """
import sys
from gnsq_lite import _core
assert _core.is_accelerated is {accelerated}
assert _core.pack(b"MPUB t\\n", [b"a", b"bc"], 9) == _core.twin.pack(b"MPUB t\\n", [b"a", b"bc"], 9)
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python 3.13 has the first interpreters that are to be had")
def test_the_extension_loads_in_an_interpreter_with_a_gil_of_its_own() -> None:
    interpreters = importlib.import_module("_interpreters")
    number = interpreters.create("isolated")
    try:
        failed = interpreters.run_string(number, IN_ANOTHER_INTERPRETER.format(accelerated=_core.is_accelerated))
    finally:
        interpreters.destroy(number)
    assert failed is None, failed.formatted
