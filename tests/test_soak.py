"""The soak in its smallest form, and proof that it sees growth."""

from __future__ import annotations

import pytest

from tests.flow import Sample
from tests.soak import Result, main


@pytest.mark.slow
def test_a_short_soak_loses_nothing_and_grows_by_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--minutes", "0.1", "--connections", "3", "--every", "1", "--pause", "0.01"])
    assert code == 0, capsys.readouterr().out
    assert " 0 lost" in capsys.readouterr().out


def test_growth_and_losses_are_faults() -> None:
    def grown(**last: int) -> list[str]:
        usual = {"at": 0.0, "handled": 1, "rss": 50_000, "descriptors": 20, "threads": 5, "greenlets": 5, "blocks": 9}
        return Result([Sample(**usual)] * 3 + [Sample(**{**usual, "at": 60.0, **last})]).faults()  # type: ignore[arg-type]

    assert grown() == []
    assert "descriptors" in grown(descriptors=31)[0]
    assert "threads" in grown(threads=11)[0]
    assert "1 threads run handlers" in grown(handlers=1)[0]
    assert "memory" in grown(rss=80_000)[0]
    assert "blocks" in grown(blocks=40_010)[0]
    assert "lost" in Result([Sample(0.0, 1, 1, 1, 1, 1, 1)], lost=1).faults()[0]
