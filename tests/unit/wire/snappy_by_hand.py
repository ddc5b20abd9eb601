"""Encodes chunks of snappy's framing format without the library under test."""

from __future__ import annotations

STREAM_ID = b"\xff\x06\x00\x00sNaPpY"


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def plain(data: bytes) -> bytes:
    """Return an uncompressed data chunk."""
    return chunk(0x01, masked_crc(data) + data)


def compressed(data: bytes) -> bytes:
    """Return a compressed data chunk that contains only literals."""
    block, left = varint(len(data)), data
    while left:
        piece, left = left[:60], left[60:]
        block += bytes([(len(piece) - 1) << 2]) + piece
    return chunk(0x00, masked_crc(data) + block)


def varint(value: int) -> bytes:
    made = b""
    while value >= 0x80:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])
