"""The dialects by the names that ``dialect=`` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.dialect import Dialect, PlainDialect
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice
from gnsq_lite.youzan.dialect import YouzanDialect

_BY_NAME: dict[str, Callable[..., Dialect]] = {"nsq": PlainDialect, "youzan": YouzanDialect}


def resolve(dialect: str | Dialect, **options: Any) -> Dialect:
    """Return the dialect of that name, made with *options*, or *dialect* itself.  Raises OptionError."""
    if not isinstance(dialect, str):
        for name, value in options.items():
            raise OptionError(name, value, f"is an option of the dialect: give it to {type(dialect).__name__}")
        return dialect
    return _BY_NAME[check_choice("dialect", dialect, *_BY_NAME)](**options)
