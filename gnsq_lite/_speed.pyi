from collections.abc import Callable
from typing import Any

from gnsq_lite.speed import PureFins, PureRunner

def know(type: type, fresh: int, /) -> None: ...
def scan(
    data: bytes,
    at: int,
    limit: int,
    make: Callable[[Any, int, int, bytes, bytes], Any],
    owner: Any,
    found: list[Any],
    /,
) -> int: ...
def skip_answered(messages: list[Any], at: int, /) -> int: ...

Fins = PureFins
Runner = PureRunner
