"""What publishing takes most of its time for, in C where it was built: a batch's bytes, and the hash of a key.

:mod:`gnsq_lite.accelerator` says which of the two runs, and how to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
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


def pure_murmur3_32(data: bytes, seed: int = 0, /) -> int:
    """Return the unsigned 32-bit murmur3 (x86 variant) of *data*."""
    whole = len(data) & ~3
    h = seed & _U32
    for (k,) in _words(data[:whole]):
        h ^= _scramble(k)
        h = (((h << 13) | (h >> 19)) * 5 + 0xE6546B64) & _U32
    if whole != len(data):
        h ^= _scramble(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _U32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _U32
    return h ^ (h >> 16)


def _scramble(k: int) -> int:
    k = (k * _C1) & _U32
    return (((k << 15) | (k >> 17)) * _C2) & _U32


_U32 = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_words = Struct("<I").iter_unpack

pack, murmur3_32, is_accelerated = pure_pack, pure_murmur3_32, False
if WANTED != "python":
    try:
        from gnsq_lite._pack import murmur3_32 as _murmur3_32
        from gnsq_lite._pack import pack as _pack
    except ImportError as missing:
        do_without(missing)
    else:
        pack, murmur3_32, is_accelerated = _pack, _murmur3_32, True
