"""Codecs for typed bodies.  A codec decodes the bytes of a body into a value, and encodes a value into bytes.

::

    from gnsq_lite.contrib.bodies import pydantic_json

    ORDER = pydantic_json(Order)

    @worker.handler("orders", "billing", decode=ORDER)
    def bill(order: Order, message: Message) -> None: ...

    writer.publish("orders", ORDER.encode(Order(number=7)))

``decode=`` accepts any function of bytes, so a codec is optional.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gnsq_lite.errors import MissingExtra

__all__ = ["JSON", "Codec", "msgspec_json", "protobuf", "pydantic_json"]

T = TypeVar("T")


@dataclass(frozen=True)
class Codec(Generic[T]):
    """A function that decodes a body, and a function that encodes a value.  Calling the codec decodes a body."""

    decode: Callable[[bytes], T]
    encode: Callable[[T], bytes]

    def __call__(self, body: bytes) -> T:
        """Decode *body*.  Raises the exceptions of *decode*."""
        return self.decode(body)


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


#: Codec that uses the standard library's JSON module, for dicts, lists, strings and numbers.
JSON: Codec[Any] = Codec(json.loads, _to_json)


def msgspec_json(kind: type[T]) -> Codec[T]:
    """Make a JSON codec that validates with msgspec against *kind*, such as a Struct.  Needs the extra ``msgspec``."""
    try:
        from msgspec.json import Decoder, Encoder
    except ModuleNotFoundError as missing:
        raise MissingExtra("msgspec_json", "msgspec", "msgspec") from missing
    return Codec(Decoder(kind).decode, Encoder().encode)


def pydantic_json(kind: type[T]) -> Codec[T]:
    """Make a JSON codec that validates with pydantic against the BaseModel *kind*.  Needs the extra ``pydantic``."""
    try:
        from pydantic import TypeAdapter
    except ModuleNotFoundError as missing:
        raise MissingExtra("pydantic_json", "pydantic", "pydantic") from missing
    adapter: Any = TypeAdapter(kind)
    return Codec(adapter.validate_json, adapter.dump_json)


def protobuf(kind: type[T]) -> Codec[T]:
    """Make a codec for a generated class of Protocol Buffers.  Needs the extra ``protobuf``."""
    try:
        from google.protobuf.message import Message
    except ModuleNotFoundError as missing:
        raise MissingExtra("protobuf", "protobuf", "protobuf") from missing
    if not (isinstance(kind, type) and issubclass(kind, Message)):
        raise TypeError(f"{kind!r} is not a generated class of Protocol Buffers")
    generated: Any = kind
    return Codec(generated.FromString, generated.SerializeToString)
