"""Adds headers and trace ids to the messages of one ``multipublish``, and splits them into MPUBs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gnsq_lite.dialect import Dialect, PublishRequest
from gnsq_lite.errors import OptionError


def fill_batch(dialect: Dialect, batch: PublishRequest, headers: Any, trace_ids: Any) -> int:
    """Set *headers* and *trace_ids* (None, or one for each body) in *batch*; return the extra bytes per body.

    Raises OptionError for a wrong number of headers or trace ids, and if the dialect cannot send them.
    """
    bodies = batch.bodies
    for option, given in (("headers", headers), ("trace_ids", trace_ids)):
        if given is not None and (not isinstance(given, Sequence) or isinstance(given, (str, bytes))):
            raise OptionError(option, given, "must be None or a list with one for each body")
        if given is not None and len(given) != len(bodies):
            raise OptionError(option, given, f"are {len(given)} for {len(bodies)} bodies")
    if headers is None and trace_ids is None:
        return dialect.batch_extra
    batch.batch_headers, batch.trace_ids, extra = dialect.beside_bodies(headers, trace_ids)
    return extra


def split_batch(batch: PublishRequest, most: int, extra: int) -> Iterator[PublishRequest]:
    """Split a batch into parts, each with an MPUB of at most *most* bytes.  A longer message gets its own part.

    *extra* is the number of bytes that are sent for each body besides the body, its size and its header.
    """
    bodies, headers, trace_ids = batch.bodies, batch.batch_headers, batch.trace_ids
    starts, size = [0], 4
    for at, body in enumerate(bodies):
        length = 4 + extra + len(body) + (0 if headers is None else len(headers[at]))
        if at > starts[-1] and size + length > most:
            starts.append(at)
            size = 4
        size += length
    for start, end in zip(starts, [*starts[1:], len(bodies)], strict=True):
        cut = slice(start, end)
        yield replace(
            batch,
            bodies=bodies[cut],
            batch_headers=None if headers is None else headers[cut],
            trace_ids=None if trace_ids is None else trace_ids[cut],
        )
