"""The columns of ``format("nsq")`` as Spark's DDL text, and the check of ``.schema(...)``.

Spark checks only the first batch, so :mod:`gnsq_lite.arrow` defines all types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from gnsq_lite.arrow import COLUMNS, columns
from gnsq_lite.errors import OptionError


def ddl(include_youzan: bool = False) -> str:
    """Return the schema as Spark's DDL text."""
    return ", ".join(f"{name} {kind}" for name, kind, _ in columns(include_youzan))


def check_schema(fields: Iterable[tuple[str, str]], wanted: Sequence[tuple[str, str, pa.DataType]] = COLUMNS) -> None:
    """Raise OptionError if *fields*, (name, Spark type), are not *wanted*.  Spark does not check ``.schema(...)``."""
    given = [(name, kind.upper()) for name, kind in fields]
    if given != [(name, kind) for name, kind, _ in wanted]:
        shown = ", ".join(f"{name} {kind}" for name, kind in given)
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in wanted)
        why = f"omit .schema(): the source always has the columns {columns}"
        raise OptionError("schema", shown, why)
