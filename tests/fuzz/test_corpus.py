"""Every input that fuzzing found worth keeping is taken, or refused as documented; so are random ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.profiles import load, repeats

load()
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_stays_harmless(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[name](path.read_bytes())


@pytest.mark.rule("WIRE-4")
@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@settings(max_examples=repeats(40))
def test_any_bytes_will_do(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(st.binary(max_size=200)))
