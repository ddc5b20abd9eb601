"""How the time of a connection attempt is shared by the addresses of a name."""

from __future__ import annotations

import pytest

from gnsq_lite.net.dialing import share


@pytest.mark.rule("CONN-5")
@pytest.mark.parametrize(
    ("left", "addresses", "seconds"),
    [
        (5.0, 1, 5.0),
        (5.0, 2, 2.5),
        (9.0, 3, 3.0),
        (9.0, 9, 2.0),  # Go's minimum
        (3.0, 9, 1.5),  # it would leave less than itself
        (0.5, 2, 0.25),
        (0.0, 2, 0.0),
    ],
)
def test_an_address_gets_its_share_of_the_time_that_is_left(left: float, addresses: int, seconds: float) -> None:
    assert share(left, addresses) == seconds
