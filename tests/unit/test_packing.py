"""MPUB's bytes in C against the Python they stand in for; where C was not built, Python stands on both sides."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import errors
from gnsq_lite._core import murmur3_32, pack, twin
from gnsq_lite.wire import commands


class Subclass(bytes):
    """bytes, but not exactly."""


bodies = st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(Subclass), st.text(max_size=3), st.none())


@pytest.mark.rule("WIRE-7", "WIRE-8")
@given(st.binary(max_size=20), st.lists(bodies, max_size=6), st.integers(-1, 41))
def test_both_say_the_same(head: bytes, batch: list[Any], most: int) -> None:
    assert pack(head, batch, most) == twin.pack(head, batch, most)


@pytest.mark.rule("WIRE-7")
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20))
def test_what_is_lawful_is_packed(batch: list[bytes]) -> None:
    assert pack(b"MPUB t\n", batch, 300) == b"MPUB t\n" + commands.multipublish_body(batch)
    assert commands.multipublish("t", iter(batch)) == b"MPUB t\n" + commands.multipublish_body(batch)


@pytest.mark.rule("WIRE-8")
@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ([b"x", b""], errors.InvalidBody),
        ([b"x", "y"], errors.BodyTypeError),
        ([b"x", b"yyyy"], errors.MessageTooLarge),
        ([], errors.InvalidBody),
    ],
)
def test_what_is_not_lawful_is_refused_with_its_own_error(batch: list[Any], error: type[Exception]) -> None:
    for one in (pack, twin.pack):
        assert one(b"MPUB t\n", batch, 3) is None
    with pytest.raises(error):
        commands.multipublish_packed(b"MPUB t\n", batch, 3)


def test_a_subclass_of_bytes_goes_the_slow_way_and_arrives() -> None:
    assert pack(b"", [Subclass(b"x")], 3) is None
    assert commands.multipublish("t", [Subclass(b"x"), b"y"]) == commands.multipublish("t", [b"x", b"y"])


def test_more_than_the_size_field_can_tell_is_not_packed() -> None:
    large = b"x" * (2**20)
    batch = [large] * 2048  # 2 GiB, of one body
    assert pack(b"", batch, 2**31 - 1) is None
    assert twin.pack(b"", batch, 2**31 - 1) is None
    with pytest.raises(errors.MessageTooLarge):
        commands.multipublish("t", batch)


@pytest.mark.parametrize("arguments", [(), (b"", []), ("", [], 1), (b"", (b"x",), 1), (b"", [b"x"], "1")])
def test_the_accelerator_refuses_other_arguments(arguments: tuple[Any, ...]) -> None:
    accelerated = pytest.importorskip("gnsq_lite._core.native", reason="the accelerator was not built").pack
    with pytest.raises(TypeError):
        accelerated(*arguments)


def test_bodies_keep_their_references() -> None:
    body = bytes(bytearray(b"a body of its own"))
    before = sys.getrefcount(body)
    for _ in range(100):
        pack(b"MPUB t\n", [body] * 3, 100)
        pack(b"MPUB t\n", [body, None], 100)
    assert sys.getrefcount(body) == before


@pytest.mark.rule("YZ-5")
@given(st.binary(max_size=70), st.integers(-1, 2**40))
def test_both_hash_a_key_alike(key: bytes, seed: int) -> None:
    assert murmur3_32(key) == twin.murmur3_32(key)
    assert murmur3_32(key, seed) == twin.murmur3_32(key, seed)


@pytest.mark.parametrize("seed", [-1, -(2**70), 2**32, 2**32 + 7, 2**70 + 7])
def test_a_seed_is_taken_modulo_two_to_the_power_of_32_without_a_warning(seed: int) -> None:
    assert murmur3_32(b"key", seed) == murmur3_32(b"key", seed % 2**32) == twin.murmur3_32(b"key", seed)


def test_what_is_no_key_is_refused() -> None:
    accelerated = pytest.importorskip("gnsq_lite._core.native", reason="the accelerator was not built").murmur3_32
    for wrong in ((), ("text",), (b"k", "text"), (b"k", 1, 2)):
        with pytest.raises(TypeError):
            accelerated(*wrong)
