"""A batch's bytes in one pass over its bodies, in C where it was built: the same bytes either way.

:mod:`gnsq_lite.accelerator` says which of the two runs, and how to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnsq_lite.accelerator import WANTED, do_without


def pure_pack(head: bytes, bodies: list[Any], most: int, /) -> bytes | None:
    """Return *head*, MPUB's size and count, and each of *bodies* with its size (WIRE-7).

    None where a body is not exactly bytes, is empty or has more than *most* bytes, where all together are more than
    the size field can tell, or where there is none: :func:`gnsq_lite.wire.commands.check_bodies` says what is wrong.
    """
    if set(map(type, bodies)) != {bytes}:
        return None
    sizes = set(map(len, bodies))
    if min(sizes) == 0 or max(sizes) > most:
        return None
    payload = 4 + 4 * len(bodies) + sum(map(len, bodies))
    if payload > _MOST_PAYLOAD:
        return None
    return head + payload.to_bytes(4, "big") + len(bodies).to_bytes(4, "big") + with_sizes(bodies)


def with_sizes(bodies: Sequence[bytes]) -> bytes:
    """Return *bodies* one after the other, each behind its size."""
    return b"".join([len(body).to_bytes(4, "big") + body for body in bodies])


_MOST_PAYLOAD = 2**31 - 1

pack, is_accelerated = pure_pack, False
if WANTED != "python":
    try:
        from gnsq_lite._pack import pack as _pack
    except ImportError as missing:
        do_without(missing)
    else:
        pack, is_accelerated = _pack, True
