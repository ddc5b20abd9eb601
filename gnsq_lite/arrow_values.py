"""Arrow arrays and scalars of Python values, built from buffers.

Before pyarrow converts its first Python object, it imports pandas if pandas is installed.  The import takes 0.2 s of
CPU and 35 MB.  ``pa.array``, ``pa.scalar`` and compute functions that receive a Python value convert objects.  Arrays
over buffers and their elements need no conversion, so a process that only records or plans does not import pandas.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import pyarrow as pa


def from_buffer(data: Any, kind: pa.DataType) -> pa.Array:
    """Return the numbers in *data*, an object with the buffer protocol, without a copy."""
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(kind, buffer.size // (kind.bit_width // 8), [None, buffer])


def number_array(values: Iterable[float | None], kind: pa.DataType) -> pa.Array:
    """Return numbers of the type int32, int64 or float64.  None becomes null."""
    given = list(values)
    code = "d" if pa.types.is_floating(kind) else "i" if kind.bit_width == 32 else "q"
    data = array(code, [value or 0 for value in given])
    return pa.Array.from_buffers(kind, len(given), [_validity(given), pa.py_buffer(data)])


def text_array(values: Iterable[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """Return texts (type string) or bytes (type binary).  None becomes null."""
    given = list(values)
    data = [value.encode() if isinstance(value, str) else value or b"" for value in given]
    ends = pa.py_buffer(array("i", accumulate(map(len, data), initial=0)))
    return pa.Array.from_buffers(kind, len(given), [_validity(given), ends, pa.py_buffer(b"".join(data))])


def flag_array(values: Iterable[bool]) -> pa.Array:
    """Return booleans, for example to filter a batch."""
    return from_buffer(bytes(values), pa.uint8()).cast(pa.bool_())


def number_scalar(value: float, kind: pa.DataType) -> pa.Scalar:
    """Return one number of the type int32, int64 or float64, for compute functions."""
    return number_array([value], kind)[0]


def text_scalar(value: str | bytes, kind: pa.DataType) -> pa.Scalar:
    """Return one text (type string) or bytes (type binary), for compute functions and for ``pa.repeat``."""
    return text_array([value], kind)[0]


def _validity(values: list[Any]) -> pa.Buffer | None:
    """Return the bitmap of the values that are not None, or None if no value is None."""
    return flag_array(value is not None for value in values).buffers()[1] if None in values else None
