"""How far tests of random input go: a little in every run, far in the long one: ``tox -e long``, or GNSQ_TESTS_LONG=1.

The default run is for the minute in which something is changed; the long one is for the night.
"""

from __future__ import annotations

import os

LONG = os.environ.get("GNSQ_TESTS_LONG", "") not in ("", "0")


def repeats(long: int, default: int | None = None) -> int:
    """Return *long* in the long run, else *default*, else a tenth of *long*."""
    if LONG:
        return long
    return max(1, long // 10) if default is None else default


def load() -> None:
    """Register the two profiles with hypothesis and load the one that this run needs."""
    from hypothesis import HealthCheck, settings  # a quarter of a second, which tests without it do not need

    # A busy machine is no defect: properties have no deadline, and print how to repeat the example that broke them.
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, database=None)
    settings.register_profile("default", common, max_examples=repeats(100))
    settings.register_profile("long", common, max_examples=1000)
    settings.load_profile("long" if LONG else "default")
