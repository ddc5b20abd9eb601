"""Checks the number of headers and trace ids of one ``multipublish``, and splits its messages into MPUBs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gnsq_lite.dialect import PublishRequest
from gnsq_lite.errors import OptionError

#: Maximum bytes that any dialect sends for a message in addition to the body, the size of the body, and the headers.
_EXTRA = 8


def check_one_each(batch: PublishRequest) -> None:
    """Raise OptionError if *batch* has headers or trace ids, but not exactly one item for each body."""
    for option, given in (("headers", batch.headers), ("trace_ids", batch.trace_ids)):
        if given is not None and (not isinstance(given, Sequence) or isinstance(given, (str, bytes))):
            raise OptionError(option, given, "must be None or a list with one item for each body")
        if given is not None and len(given) != len(batch.bodies):
            raise OptionError(option, given, f"has {len(given)} items for {len(batch.bodies)} bodies")


def split_batch(batch: PublishRequest, most: int) -> Iterator[PublishRequest]:
    """Split a batch into parts whose MPUBs have at most *most* bytes.  A longer message is alone in its part."""
    bodies, headers, trace_ids = batch.bodies, batch.encoded_headers, batch.trace_ids
    starts, size = [0], 4
    for at, body in enumerate(bodies):
        length = 4 + _EXTRA + len(body) + (0 if headers is None else len(headers[at]))
        if at > starts[-1] and size + length > most:
            starts.append(at)
            size = 4
        size += length
    for start, end in zip(starts, [*starts[1:], len(bodies)], strict=True):
        cut = slice(start, end)
        yield replace(
            batch,
            bodies=bodies[cut],
            encoded_headers=None if headers is None else headers[cut],
            trace_ids=None if trace_ids is None else trace_ids[cut],
        )
