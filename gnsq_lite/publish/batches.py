"""The messages of one ``multipublish``: checked, each with its header or trace id, and split into MPUBs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.dialect import Dialect, PublishRequest
from gnsq_lite.errors import OptionError


@dataclass(frozen=True, slots=True)
class Batch:
    """Bodies, and for each a header's bytes, or a trace id, or neither; *extra* is what each takes beside its body."""

    bodies: Sequence[bytes]
    headers: Sequence[bytes] | None = None
    trace_ids: Sequence[int] | None = None
    extra: int = 0

    def parts(self, most: int) -> Iterator[Batch]:
        """Yield it in parts whose MPUBs have at most *most* bytes each; a longer message is a part of its own."""
        start, size = 0, 4
        for at, body in enumerate(self.bodies):
            length = 4 + self.extra + len(body) + (0 if self.headers is None else len(self.headers[at]))
            if at > start and size + length > most:
                yield self._cut(start, at)
                start, size = at, 4
            size += length
        yield self if start == 0 else self._cut(start, len(self.bodies))

    def request(self, topic: str, key: bytes | None, partition: int | None) -> PublishRequest:
        """Return what a dialect is asked for."""
        return PublishRequest(
            topic=topic,
            bodies=self.bodies,
            batch=True,
            key=key,
            partition=partition,
            batch_headers=self.headers,
            trace_ids=self.trace_ids,
        )

    def _cut(self, start: int, end: int) -> Batch:
        cut = slice(start, end)
        headers = None if self.headers is None else self.headers[cut]
        trace_ids = None if self.trace_ids is None else self.trace_ids[cut]
        return Batch(self.bodies[cut], headers, trace_ids, self.extra)


def batch_of(dialect: Dialect, topic: str, bodies: Sequence[bytes], headers: Any, trace_ids: Any) -> Batch:
    """Return the batch of *bodies*, each with its own of *headers* and *trace_ids* where they are given.

    Raises OptionError if there are not as many as bodies, and for what the dialect cannot send.
    """
    _check_each("headers", headers, bodies)
    _check_each("trace_ids", trace_ids, bodies)
    if dialect.pack is not None:
        given: Sequence[Mapping[str, Any] | None] = [None] * len(bodies) if headers is None else headers
        packed = [dialect.pack(topic, body, header) for body, header in zip(bodies, given, strict=True)]
        bodies = [body for body, _ in packed]
        if headers is not None or any(header is not None for _, header in packed):
            headers = [header for _, header in packed]
    if headers is None and trace_ids is None:
        return Batch(bodies, extra=dialect.batch_extra)
    return Batch(bodies, *dialect.beside_bodies(headers, trace_ids))


def _check_each(option: str, given: Any, bodies: Sequence[bytes]) -> None:
    if given is not None and (not isinstance(given, Sequence) or isinstance(given, (str, bytes))):
        raise OptionError(option, given, "must be None or a list with one for each body")
    if given is not None and len(given) != len(bodies):
        raise OptionError(option, given, f"are {len(given)} for {len(bodies)} bodies")
