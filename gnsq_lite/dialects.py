"""Makes the dialect that the option ``dialect`` of a Reader or Writer names."""

from __future__ import annotations

from typing import Any

from gnsq_lite.dialect import Dialect
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice
from gnsq_lite.youzan.dialect import YouzanDialect


def make_dialect(dialect: str | Dialect, **options: Any) -> Dialect:
    """Make a dialect from its name and *options*.  Return a Dialect object unchanged.  Raises OptionError."""
    if isinstance(dialect, str):
        check_choice("dialect", dialect, Dialect.name, YouzanDialect.name)
        return Dialect(**options) if dialect == Dialect.name else YouzanDialect(**options)
    for name, value in options.items():
        raise OptionError(name, value, f"is an option of the dialect: give it to {type(dialect).__name__}")
    return dialect
