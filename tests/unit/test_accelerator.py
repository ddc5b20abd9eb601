"""Which of the two implementations runs is chosen by the environment, and a demand is met or refused, never ignored."""

from __future__ import annotations

import pytest

from gnsq_lite import accelerator, packing, speed


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({}, "auto"),
        ({"GNSQ_LITE_IMPL": ""}, "auto"),
        ({"GNSQ_LITE_IMPL": "c"}, "c"),
        ({"GNSQ_LITE_IMPL": "python"}, "python"),
        ({"GNSQ_LITE_PURE": "1"}, "python"),
        ({"GNSQ_LITE_PURE": "0"}, "auto"),
        ({"GNSQ_LITE_IMPL": "c", "GNSQ_LITE_PURE": "1"}, "c"),
    ],
)
def test_the_environment_chooses(environment: dict[str, str], word: str) -> None:
    assert accelerator.wanted(environment) == word


def test_another_word_is_refused() -> None:
    with pytest.raises(ImportError, match="'c', 'python' or 'auto'"):
        accelerator.wanted({"GNSQ_LITE_IMPL": "fast"})


def test_a_missing_extension_is_an_error_only_where_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ImportError("no _speed")
    monkeypatch.setattr(accelerator, "WANTED", "auto")
    accelerator.do_without(missing)
    monkeypatch.setattr(accelerator, "WANTED", "c")
    with pytest.raises(ImportError, match="was not built"):
        accelerator.do_without(missing)


def test_what_was_demanded_runs_here() -> None:
    if accelerator.WANTED != "auto":
        assert speed.is_accelerated is packing.is_accelerated is (accelerator.WANTED == "c")
