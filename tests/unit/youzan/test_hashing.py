"""Sharding keys map to partitions exactly as Youzan's Go and Java clients map them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite._core import murmur3_32
from gnsq_lite.errors import OptionError
from gnsq_lite.youzan.partitions import java_string_hash, partition_of

GO = [
    (b"a", 0x3C2569B2),
    (b"key1", 0x9B970125),
    (b"order-123", 0xADAE14BD),
    (b"12345", 0x13A51193),
    ("中文".encode(), 0xDB267197),
    (b"", 0),
]


@pytest.mark.rule("YZ-5")
@pytest.mark.parametrize(("key", "expected"), GO)
def test_murmur3_gives_what_the_go_client_gives(key: bytes, expected: int) -> None:
    assert murmur3_32(key) == expected
    assert partition_of(key, 7) == expected % 7


def test_murmur3_with_a_seed_gives_the_published_vectors() -> None:
    assert murmur3_32(b"", 1) == 0x514E28B7
    assert murmur3_32(b"", 0xFFFFFFFF) == 0x81F16F39
    assert murmur3_32(b"\xff\xff\xff\xff") == 0x76293B50
    assert murmur3_32(b"\x21\x43\x65\x87", 0x5082EDEE) == 0x2362F9DE
    assert murmur3_32(b"Hello, world!", 0x9747B28C) == 0x24884CBA


JAVA = [
    ("", 0),
    ("a", 97),
    ("hello", 99162322),
    ("polygenelubricants", -(2**31)),
    ("Aa", 2112),
    ("BB", 2112),
    ("中文", 646394),
    ("\U0001f600", 1772899),
]


@pytest.mark.parametrize(("text", "expected"), JAVA)
def test_java_hash_is_string_hashcode(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@given(st.text(max_size=40), st.integers(1, 1000))
def test_java_mapping_is_the_absolute_value_of_javas_remainder(key: str, partitions: int) -> None:
    total = 0
    units = key.encode("utf-16-le", "surrogatepass")
    count = len(units) // 2
    for at in range(count):
        total += (units[2 * at] + 256 * units[2 * at + 1]) * 31 ** (count - 1 - at)
    signed = (total + 2**31) % 2**32 - 2**31
    remainder = signed - int(signed / partitions) * partitions  # Java's %: truncates towards zero
    assert partition_of(key.encode(), partitions, "java") == abs(remainder)


def test_go_and_java_disagree_so_a_topic_needs_one_of_them() -> None:
    assert (partition_of(b"a", 8, "go"), partition_of(b"a", 8, "java")) == (0x3C2569B2 % 8, 97 % 8)
    assert 0x3C2569B2 % 8 != 97 % 8


def test_a_java_key_must_be_text() -> None:
    with pytest.raises(OptionError, match="UTF-8"):
        partition_of(b"\xff", 4, "java")
